package redis.clients.jedis.params;

import java.util.*;

public record XReadGroupParams(List<Object> words) {
    public static XReadGroupParams xReadGroupParams() {
        return new XReadGroupParams(new ArrayList<>());
    }

    public XReadGroupParams count(int count) {
        words.addAll(List.of("COUNT", count));
        return this;
    }

    public XReadGroupParams block(int block) {
        words.addAll(List.of("BLOCK", block));
        return this;
    }
}
