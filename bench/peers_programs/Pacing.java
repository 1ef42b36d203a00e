import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * End-to-end latency at a fixed rate=N per second: topic=NAME, group=NAME, bytes=N, warm_up_s=S,
 * seconds=S, and the options of a consumer. With alone=true there is no consumer.
 *
 * <p>Each message carries the time at which it was meant to be sent, so that a late send counts as
 * latency. Producer and consumer share this process and its clock.
 */
final class Pacing {
    private static final long PROBE_NANOS = 20_000_000;
    private static final long SETTLE_NANOS = 60_000_000_000L;

    private final Words words;
    private final byte[] body;
    private final boolean isAlone;
    private final DefaultMQProducer producer;
    private final DefaultMQPushConsumer consumer;
    private final Meter meter = new Meter();
    private final Histogram latencies = new Histogram();
    private final AtomicLong probed = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private final AtomicReference<Throwable> problem = new AtomicReference<>();
    private final long lifeNanos = System.nanoTime();
    private volatile long countedFrom = Long.MAX_VALUE;

    Pacing(String namesrv, Words words) throws Exception {
        this.words = words;
        body = new byte[Math.max(Long.BYTES, words.number("bytes", 1024))];
        isAlone = words.text("alone", "false").equals("true");
        producer = Producers.made(namesrv, false);
        consumer = Consuming.made(namesrv, words);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(this::take);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    Figures run() throws Exception {
        producer.start();
        if (!isAlone) {
            consumer.start();
        }
        try {
            if (!isAlone) {
                probe();
            }
            long sent = paced();
            if (!isAlone) {
                waitForAll(sent);
            }
            // Count the CPU of the last deliveries, too.
            meter.end();
            check();
            Figures figures = meter.figures(sent).put("received_count", received.get());
            latencies.report(figures);
            return figures;
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    /** Send until every queue's messages come back: the consumer has been given its queues. */
    private void probe() throws Exception {
        int queueCount = producer.fetchPublishMessageQueues(words.text("topic")).size();
        long sent = 0;
        for (long deadline = System.nanoTime() + SETTLE_NANOS; System.nanoTime() < deadline;) {
            if (sent < queueCount) {
                producer.send(message(lifeNanos));
                sent++;
            } else if (probed.get() >= sent) {
                return;
            }
            LockSupport.parkNanos(PROBE_NANOS);
        }
        throw new IllegalStateException(probed.get() + " of " + sent + " probes came back");
    }

    /** How many messages were sent in the measured part. */
    private long paced() throws Exception {
        double intervalNanos = 1e9 / words.real("rate", 1000);
        long warmUpCount = (long) (words.nanos("warm_up_s", 1) / intervalNanos);
        long count = Math.max(1, (long) (words.nanos("seconds", 1) / intervalNanos));
        long begun = System.nanoTime();
        countedFrom = begun + (long) (warmUpCount * intervalNanos);
        for (long number = 0; number < warmUpCount + count && problem.get() == null; number++) {
            if (number == warmUpCount) {
                meter.begin();
            }
            sendAt(begun + (long) (number * intervalNanos));
        }
        return count;
    }

    private void sendAt(long intendedNanos) throws Exception {
        for (long left = intendedNanos - System.nanoTime(); left > 0;) {
            LockSupport.parkNanos(left);
            left = intendedNanos - System.nanoTime();
        }
        producer.send(message(intendedNanos), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                // The time at which the consumer sees it counts.
            }

            @Override
            public void onException(Throwable caught) {
                problem.compareAndSet(null, caught);
            }
        });
    }

    private void waitForAll(long sent) throws InterruptedException {
        long deadline = System.nanoTime() + SETTLE_NANOS;
        while (received.get() < sent && problem.get() == null && System.nanoTime() < deadline) {
            TimeUnit.MILLISECONDS.sleep(10);
        }
        check();
        if (received.get() < sent) {
            throw new IllegalStateException(received.get() + " of " + sent + " messages came back");
        }
    }

    private void check() {
        if (problem.get() != null) {
            throw new IllegalStateException(problem.get());
        }
    }

    private Message message(long intendedNanos) {
        byte[] stamped = body.clone();
        ByteBuffer.wrap(stamped).putLong(intendedNanos);
        return new Message(words.text("topic"), stamped);
    }

    /** Messages of earlier runs may come first: they were meant for a time before this one's. */
    private void take(MessageExt message) {
        long now = System.nanoTime();
        long intended = ByteBuffer.wrap(message.getBody()).getLong();
        if (intended == lifeNanos) {
            probed.incrementAndGet();
        } else if (intended >= countedFrom) {
            latencies.record(now - intended);
            received.incrementAndGet();
        }
    }
}
