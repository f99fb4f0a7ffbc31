package redis.clients.jedis;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.*;
import java.net.*;
import java.util.*;
import java.util.stream.Stream;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.resps.StreamEntry;

public class Jedis {
    private final DataInputStream in;
    private final PrintStream out;

    public Jedis(final URI uri) {
        try {
            Socket socket = new Socket(uri.getHost(), uri.getPort());
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            out = new PrintStream(socket.getOutputStream(), false, UTF_8);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @SuppressWarnings("unchecked")
    public List<String> blpop(final int timeout, final String key) {
        return (List<String>) call(List.of("BLPOP", key, timeout));
    }

    public long rpush(final String key, final String... strings) {
        return (long) call(List.of("RPUSH", key), List.of(strings));
    }

    public List<Map.Entry<String, List<StreamEntry>>> xreadGroup(final String groupName,
            final String consumer, XReadGroupParams params, Map<String, StreamEntryID> streams) {
        List<?> read = (List<?>) call(List.of("XREADGROUP", "GROUP", groupName, consumer),
                params.words(), List.of("STREAMS"), streams.keySet(), streams.values());
        if (read == null) return null;
        List<Map.Entry<String, List<StreamEntry>>> all = new ArrayList<>();
        for (Object one : read) {
            List<?> stream = (List<?>) one, entries = (List<?>) stream.get(1);
            all.add(Map.entry((String) stream.get(0), entries.stream().map(Jedis::entry).toList()));
        }
        return all;
    }

    public long xack(final String key, final String group, final StreamEntryID... ids) {
        return (long) call(List.of("XACK", key, group), List.of(ids));
    }

    private static StreamEntry entry(Object read) {
        List<?> parts = (List<?>) read;
        Map<String, String> fields = new HashMap<>();
        Iterator<?> words = ((List<?>) parts.get(1)).iterator();
        while (words.hasNext()) fields.put((String) words.next(), (String) words.next());
        return new StreamEntry(new StreamEntryID((String) parts.get(0)), fields);
    }

    private Object call(Collection<?>... parts) {
        List<?> words = Stream.of(parts).flatMap(Collection::stream).toList();
        out.print("*" + words.size() + "\r\n");
        for (Object word : words)
            out.print("$" + word.toString().getBytes(UTF_8).length + "\r\n" + word + "\r\n");
        out.flush();
        try {
            return answer();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** A Long, a String, a List of answers, or null. */
    @SuppressWarnings("deprecation") // readLine() is for ASCII, and so is what it reads here.
    private Object answer() throws IOException {
        char kind = (char) in.readByte();
        String rest = in.readLine();
        if (kind == '-') throw new IllegalStateException(rest);
        long number = Long.parseLong(rest);
        if (kind == ':') return number;
        if (number < 0) return null;
        if (kind == '$') return new String(in.readNBytes((int) number + 2), 0, (int) number, UTF_8);
        List<Object> parts = new ArrayList<>();
        while (parts.size() < number) parts.add(answer());
        return parts;
    }
}
