import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.Message;

/**
 * The messages of a load, each made from its number.
 *
 * <p>bytes=N of body; topic=NAME, or NAME-0 to NAME-(N-1) in turn with topics=N; with wanted_every=N
 * each Nth has the tag "wanted" and the property number=0, the others "other" and 1 to N-1.
 */
final class Messages {
    private final String topic;
    private final int topicCount;
    private final int wantedEvery;
    private final byte[] body;

    Messages(Words words) {
        topic = words.text("topic");
        topicCount = words.number("topics", 0);
        wantedEvery = words.number("wanted_every", 0);
        body = body(words.number("bytes", 1024));
    }

    Message at(long number) {
        Message message = new Message(topicAt(number), body);
        if (wantedEvery > 0) {
            long place = number % wantedEvery;
            message.setTags(place == 0 ? "wanted" : "other");
            message.putUserProperty("number", Long.toString(place));
        }
        return message;
    }

    /** Messages of one topic, as a batch must be. */
    List<Message> batchAt(long number, int count) {
        List<Message> batch = new ArrayList<>(count);
        for (int index = 0; index < count; index++) {
            batch.add(new Message(topicAt(number), body));
        }
        return batch;
    }

    private String topicAt(long number) {
        return topicCount == 0 ? topic : topic + "-" + number % topicCount;
    }

    private static byte[] body(int byteCount) {
        byte[] body = new byte[byteCount];
        for (int index = 0; index < byteCount; index++) {
            body[index] = (byte) (33 + (index * 31 + 7) % 14);
        }
        return body;
    }
}
