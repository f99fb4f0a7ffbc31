// Takes jobs from an acknowledged stream. REDIS_URL=… jbang StreamConsumer.java orders closers me
//DEPS redis.clients:jedis:5.2.0
import java.net.URI;
import java.util.Map;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.params.XReadGroupParams;

class StreamConsumer {
    static void closeOrder(Map<String, String> job) {
        System.out.println("done " + job.get("key") + " " + job.get("payload"));
    }

    public static void main(String[] args) {
        Jedis db = new Jedis(URI.create(System.getenv("REDIS_URL")));
        var few = XReadGroupParams.xReadGroupParams().count(10).block(1000);
        var news = Map.of(args[0], StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY);
        while (true) {
            var read = db.xreadGroup(args[1], args[2], few, news);
            if (read == null) continue;
            for (var entry : read.get(0).getValue()) {
                try {
                    closeOrder(entry.getFields());
                } catch (RuntimeException error) {
                    // Not acknowledged, it comes again as the policy of its route says.
                    System.err.println(entry.getID() + ": " + error);
                    continue;
                }
                db.xack(args[0], args[1], entry.getID());
            }
        }
    }
}
