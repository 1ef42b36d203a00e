import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A push consumer that counts: topic=NAME, group=NAME, count=N messages expected from the first on,
 * tags=EXPRESSION or sql=EXPRESSION, threads=N, timeout_s=S.
 *
 * <p>Its wall time runs from the first message to the last, the broker's CPU from before its start.
 */
final class Consuming {
    private final Words words;
    private final long count;
    private final Meter meter = new Meter();
    private final AtomicLong seen = new AtomicLong();
    private final CountDownLatch ended = new CountDownLatch(1);
    private final DefaultMQPushConsumer consumer;
    private volatile long firstNanos;
    private volatile long lastNanos;

    Consuming(String namesrv, Words words) throws Exception {
        this.words = words;
        count = words.number("count", 0);
        consumer = made(namesrv, words);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            take(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    static DefaultMQPushConsumer made(String namesrv, Words words) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words.text("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        int threads = words.number("threads", 4);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setPullBatchSize(words.number("pull_batch", 32));
        consumer.setConsumeMessageBatchMaxSize(words.number("consume_batch", 1));
        String topic = words.text("topic");
        if (words.has("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(words.text("sql")));
        } else {
            consumer.subscribe(topic, words.text("tags", "*"));
        }
        return consumer;
    }

    Figures run() throws Exception {
        meter.begin();
        consumer.start();
        try {
            long timeoutNanos = words.nanos("timeout_s", 120);
            if (!ended.await(timeoutNanos, TimeUnit.NANOSECONDS)) {
                throw new IllegalStateException(seen.get() + " of " + count + " were consumed in time");
            }
            meter.end();
            return meter.figures(count)
                .put("from_start_s", meter.wallSeconds())
                .put("wall_s", Math.max(1, lastNanos - firstNanos) / 1e9);
        } finally {
            consumer.shutdown();
        }
    }

    private void take(int messageCount) {
        long now = System.nanoTime();
        long before = seen.getAndAdd(messageCount);
        if (before == 0) {
            firstNanos = now;
        }
        if (before < count && before + messageCount >= count) {
            lastNanos = now;
            ended.countDown();
        }
    }
}
