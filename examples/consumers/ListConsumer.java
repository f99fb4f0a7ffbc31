// Takes jobs from an acknowledged list. REDIS_URL=… jbang ListConsumer.java orders
//DEPS redis.clients:jedis:5.2.0
//DEPS com.google.code.gson:gson:2.11.0
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.net.URI;
import java.util.List;
import redis.clients.jedis.Jedis;

class ListConsumer {
    static void closeOrder(JsonObject job) {
        System.out.println("done " + job.get("key").getAsString() + " " + job.get("payload"));
    }

    public static void main(String[] args) {
        Jedis db = new Jedis(URI.create(System.getenv("REDIS_URL")));
        while (true) {
            List<String> taken = db.blpop(1, args[0]);
            if (taken == null) continue;
            JsonObject job = JsonParser.parseString(taken.get(1)).getAsJsonObject();
            try {
                closeOrder(job);
            } catch (RuntimeException error) {
                // Not acknowledged, it comes again when its lease is over.
                System.err.println(job.get("key") + ": " + error);
                continue;
            }
            db.rpush(args[0] + ":done", job.get("lease").getAsString());
        }
    }
}
