package redis.clients.jedis.resps;

public record StreamEntry(
        redis.clients.jedis.StreamEntryID getID, java.util.Map<String, String> getFields) {}
