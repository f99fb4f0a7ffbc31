package redis.clients.jedis;

public record StreamEntryID(String id) {
    public static final StreamEntryID XREADGROUP_UNDELIVERED_ENTRY = new StreamEntryID(">");

    public String toString() {
        return id;
    }
}
