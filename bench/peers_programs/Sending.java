import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends by many threads of one producer.
 *
 * <p>mode=sync|async|oneway|batch|ordered|delayed|transactional, threads=N, and what
 * {@link Messages} takes. Either seconds=S after warm_up_s=S, or count=N messages after
 * warm_up_count=N. An async send waits while window=N are under way; batch=N messages; ordered by
 * one of keys=N; delayed by level=N or delay_ms=N.
 */
final class Sending {
    private interface OneSend {
        void send(long number) throws Exception;
    }

    private final Words words;
    private final Messages messages;
    private final DefaultMQProducer producer;
    private final int batch;
    private final int window;
    private final Semaphore places;
    private final AtomicLong next = new AtomicLong();
    private final LongAdder acknowledged = new LongAdder();
    private final Histogram latencies = new Histogram();
    private final Meter meter = new Meter();
    private final CountDownLatch failed = new CountDownLatch(1);
    private final AtomicReference<Throwable> problem = new AtomicReference<>();
    private volatile long limit;

    Sending(String namesrv, Words words) {
        this.words = words;
        messages = new Messages(words);
        String mode = words.text("mode");
        producer = Producers.made(namesrv, mode.equals("transactional"));
        batch = mode.equals("batch") ? words.number("batch", 32) : 1;
        window = words.number("window", 1024);
        places = new Semaphore(window);
    }

    Figures run() throws Exception {
        producer.start();
        try {
            long count = words.has("count") ? counted() : timed();
            check();
            if (count == 0) {
                throw new IllegalStateException("nothing was acknowledged in time: load for longer");
            }
            Figures figures = meter.figures(count).put("sent_count", acknowledged.sum());
            latencies.report(figures);
            return figures;
        } finally {
            producer.shutdown();
        }
    }

    /** The threads never pause between the warm-up and what is measured. */
    private long timed() throws Exception {
        limit = Long.MAX_VALUE;
        List<Thread> threads = started();
        failed.await(words.nanos("warm_up_s", 1), TimeUnit.NANOSECONDS);
        latencies.clear();
        meter.begin();
        long before = acknowledged.sum();
        failed.await(words.nanos("seconds", 1), TimeUnit.NANOSECONDS);
        long count = acknowledged.sum() - before;
        meter.end();
        limit = 0;
        finish(threads);
        return count;
    }

    private long counted() throws Exception {
        limit = words.number("warm_up_count", 0) / batch;
        finish(started());
        check();
        latencies.clear();
        long before = acknowledged.sum();
        next.set(limit);
        limit += Math.max(1, words.number("count", 0) / batch);
        meter.begin();
        finish(started());
        meter.end();
        return acknowledged.sum() - before;
    }

    private List<Thread> started() {
        OneSend send = chosen(words.text("mode"));
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < words.number("threads", 1); index++) {
            Thread thread = new Thread(() -> sendAll(send), "load-" + index);
            thread.start();
            threads.add(thread);
        }
        return threads;
    }

    private void finish(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
        places.acquire(window);
        places.release(window);
    }

    private void sendAll(OneSend send) {
        try {
            for (long number = next.getAndIncrement(); number < limit; number = next.getAndIncrement()) {
                send.send(number);
            }
        } catch (Exception caught) {
            fail(caught);
        }
    }

    private OneSend chosen(String mode) {
        switch (mode) {
            case "sync":
                return number -> timed(number, () -> producer.send(messages.at(number)));
            case "async":
                return this::sendAsync;
            case "oneway":
                return number -> {
                    producer.sendOneway(messages.at(number));
                    acknowledged.increment();
                };
            case "batch":
                return number -> timed(number, () -> producer.send(messages.batchAt(number, batch)));
            case "ordered":
                return ordered(words.number("keys", 1000));
            case "delayed":
                return number -> timed(number, () -> producer.send(delayed(number)));
            case "transactional":
                return number -> timed(
                    number, () -> producer.sendMessageInTransaction(messages.at(number), null));
            default:
                throw new IllegalArgumentException("no mode " + mode);
        }
    }

    private OneSend ordered(int keys) {
        var byHash = new SelectMessageQueueByHash();
        return number -> timed(
            number, () -> producer.send(messages.at(number), byHash, Long.toString(number % keys)));
    }

    private Message delayed(long number) {
        Message message = messages.at(number);
        if (words.has("delay_ms")) {
            message.setDelayTimeMs(words.number("delay_ms", 0));
        } else {
            message.setDelayTimeLevel(words.number("level", 1));
        }
        return message;
    }

    private interface Answered {
        SendResult call() throws Exception;
    }

    private void timed(long number, Answered send) throws Exception {
        long begun = System.nanoTime();
        accept(number, send.call());
        latencies.record(System.nanoTime() - begun);
    }

    private void sendAsync(long number) throws Exception {
        places.acquire();
        try {
            producer.send(messages.at(number), answered(number, System.nanoTime()));
        } catch (Exception caught) {
            places.release();
            throw caught;
        }
    }

    private SendCallback answered(long number, long begun) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                latencies.record(System.nanoTime() - begun);
                accept(number, result);
                places.release();
            }

            @Override
            public void onException(Throwable caught) {
                fail(caught);
                places.release();
            }
        };
    }

    private void accept(long number, SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            fail(new IllegalStateException("send " + number + ": " + result.getSendStatus()));
        }
        acknowledged.add(batch);
    }

    private void fail(Throwable caught) {
        problem.compareAndSet(null, caught);
        limit = 0;
        failed.countDown();
    }

    private void check() {
        if (problem.get() != null) {
            throw new IllegalStateException(problem.get());
        }
    }
}
