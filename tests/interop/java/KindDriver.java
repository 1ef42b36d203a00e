import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.text.SimpleDateFormat;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Many producers and consumers of Apache's Java client in one JVM, for the message kinds.
 *
 * <p>A line of standard input is one JSON object: what to {@code do}, under which {@code id}, and
 * its arguments. Lines of standard output are events; the one that ends a command is {@code ok} or
 * {@code failed} with its id. The same source is compiled against 4.9 and 5.x; what only 5.x has is
 * looked up by name.
 */
public class KindDriver {
    private static final int CALL_TIMEOUT_MS = 20_000;
    private static final int INTERVAL_MS = 1000;
    private static final int POLL_MS = 50;
    // A transaction whose producer is about to be killed.
    private static final String HANG = "HANG";

    private static PrintStream out;

    private final String namesrv;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();

    private KindDriver(String namesrv) {
        this.namesrv = namesrv;
    }

    public static void main(String[] line) throws Exception {
        // Events alone go to standard output; whatever else prints there is a log.
        out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        System.setProperty("rocketmq.client.rebalance.waitInterval", "" + INTERVAL_MS);
        new KindDriver(JSON.parseObject(line[1]).getString("namesrv")).serve();
        // The parent closed our input and waits for nothing more.
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        print("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject told = JSON.parseObject(line);
            threads.execute(() -> answer(told));
        }
    }

    private void answer(JSONObject told) {
        JSONObject answer = new JSONObject(true);
        answer.put("id", told.get("id"));
        try {
            answer.put("event", "ok");
            run(told, answer);
        } catch (Throwable problem) {
            problem.printStackTrace();
            answer.put("event", "failed");
            answer.put("text", problem.toString());
        }
        print(answer);
    }

    private void run(JSONObject told, JSONObject answer) throws Exception {
        switch (told.getString("do")) {
            case "producer":
                startProducer(told);
                return;
            case "consumer":
                startConsumer(told);
                return;
            case "send":
                send(told, answer);
                return;
            case "transact":
                transact(told, answer);
                return;
            case "request":
                request(told, answer);
                return;
            case "recall":
                recall(told, answer);
                return;
            case "close":
                close(told.getString("name"));
                return;
            default:
                throw new IllegalArgumentException("no such command: " + told);
        }
    }

    private void close(String name) {
        DefaultMQProducer producer = producers.remove(name);
        if (producer != null) {
            producer.shutdown();
        }
        DefaultMQPushConsumer consumer = consumers.remove(name);
        if (consumer != null) {
            consumer.shutdown();
        }
    }

    private void configure(ClientConfig client, JSONObject told) {
        client.setNamesrvAddr(told.containsKey("namesrv") ? told.getString("namesrv") : namesrv);
        client.setInstanceName(told.getString("name"));
        client.setPollNameServerInterval(INTERVAL_MS);
        client.setHeartbeatBrokerInterval(INTERVAL_MS);
        client.setPersistConsumerOffsetInterval(INTERVAL_MS);
        client.setMqClientApiTimeout(CALL_TIMEOUT_MS);
    }

    // Producers.

    private void startProducer(JSONObject told) throws Exception {
        String name = told.getString("name");
        DefaultMQProducer producer;
        if (told.containsKey("check")) {
            TransactionMQProducer checked = new TransactionMQProducer(told.getString("group"));
            checked.setTransactionListener(new Fates(name, told.getJSONArray("check")));
            producer = checked;
        } else {
            producer = new DefaultMQProducer(told.getString("group"));
        }
        configure(producer, told);
        producer.setSendMsgTimeout(CALL_TIMEOUT_MS);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        producers.put(name, producer);
    }

    /** Decides local transactions by what the send said, and checks by the list given. */
    private static class Fates implements TransactionListener {
        private final String name;
        private final JSONArray answers;
        private final Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();

        Fates(String name, JSONArray answers) {
            this.name = name;
            this.answers = answers;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object fate) {
            print("half", "by", name, "key", message.getKeys(),
                "transaction_id", message.getTransactionId());
            if (fate.equals(HANG)) {
                waitForEver();
            }
            return LocalTransactionState.valueOf((String) fate);
        }

        private static void waitForEver() {
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException end) {
                throw new IllegalStateException(end);
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int count = checks.computeIfAbsent(message.getKeys(), key -> new AtomicInteger())
                .getAndIncrement();
            // Of fewer answers than checks the last is for all the others.
            String fate = answers.getString(Math.min(count, answers.size() - 1));
            print("checked", "by", name, "key", message.getKeys(), "answer", fate,
                "properties", message.getProperties());
            return LocalTransactionState.valueOf(fate);
        }
    }

    private void send(JSONObject told, JSONObject answer) throws Exception {
        DefaultMQProducer producer = producers.get(told.getString("producer"));
        JSONArray sent = new JSONArray();
        for (Object key : told.getJSONArray("keys")) {
            Message message = message(told, (String) key);
            sent.add(sentRow((String) key, sendOne(producer, message, told)));
        }
        answer.put("sent", sent);
    }

    private static SendResult sendOne(DefaultMQProducer producer, Message message, JSONObject told)
        throws Exception {
        if (told.containsKey("queue_id")) {
            return producer.send(message, oneQueue(told.getIntValue("queue_id")), null);
        }
        if (told.containsKey("shard_by")) {
            // The part of the key before this mark chooses the queue.
            String shard = message.getKeys().split(told.getString("shard_by"))[0];
            return producer.send(message, KindDriver::queueOfShard, shard);
        }
        return producer.send(message);
    }

    private static MessageQueueSelector oneQueue(int queueId) {
        return (queues, message, unused) -> new TreeSet<>(queues).stream()
            .filter(queue -> queue.getQueueId() == queueId).findFirst().get();
    }

    private static MessageQueue queueOfShard(List<MessageQueue> queues, Message message, Object shard) {
        int at = Math.floorMod(shard.hashCode(), queues.size());
        return new TreeSet<>(queues).stream().skip(at).findFirst().get();
    }

    private static JSONObject sentRow(String key, SendResult result) throws Exception {
        JSONObject row = new JSONObject(true);
        row.put("key", key);
        row.put("status", result.getSendStatus().name());
        row.put("message_id", result.getMsgId());
        row.put("queue_id", result.getMessageQueue().getQueueId());
        row.put("broker", result.getMessageQueue().getBrokerName());
        row.put("queue_offset", result.getQueueOffset());
        try {
            row.put("handle", SendResult.class.getMethod("getRecallHandle").invoke(result));
        } catch (NoSuchMethodException onlyIn5) {
            row.put("handle", null);
        }
        return row;
    }

    private static Message message(JSONObject told, String key) throws Exception {
        StringBuilder text = new StringBuilder("body-" + key);
        text.setLength(Math.max(text.length(), told.getIntValue("body_bytes")));
        byte[] body = text.toString().getBytes(StandardCharsets.UTF_8);
        Message message = new Message(told.getString("topic"), told.getString("tag"), key, body);
        if (told.containsKey("delay_level")) {
            message.setDelayTimeLevel(told.getIntValue("delay_level"));
        }
        for (String name : new String[] {"DeliverTimeMs", "DelayTimeMs", "DelayTimeSec"}) {
            if (told.containsKey(name)) {
                Message.class.getMethod("set" + name, long.class)
                    .invoke(message, told.getLongValue(name));
            }
        }
        return message;
    }

    private void transact(JSONObject told, JSONObject answer) throws Exception {
        TransactionMQProducer producer =
            (TransactionMQProducer) producers.get(told.getString("producer"));
        String key = told.getString("key");
        answer.put("sent", sentRow(key,
            producer.sendMessageInTransaction(message(told, key), told.getString("fate"))));
    }

    private void request(JSONObject told, JSONObject answer) throws Exception {
        DefaultMQProducer producer = producers.get(told.getString("producer"));
        Message question = message(told, told.getString("key"));
        Message reply = producer.request(question, told.getLongValue("timeout_ms"));
        answer.put("body", new String(reply.getBody(), StandardCharsets.UTF_8));
        answer.put("properties", reply.getProperties());
    }

    private void recall(JSONObject told, JSONObject answer) throws Exception {
        DefaultMQProducer producer = producers.get(told.getString("producer"));
        answer.put("message_id", DefaultMQProducer.class
            .getMethod("recallMessage", String.class, String.class)
            .invoke(producer, told.getString("topic"), told.getString("handle")));
    }

    // Consumers.

    private void startConsumer(JSONObject told) throws Exception {
        String name = told.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(told.getString("group"));
        configure(consumer, told);
        startFrom(consumer, told);
        if (told.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(told.getIntValue("max_reconsume_times"));
        }
        consumer.subscribe(told.getString("topic"), "*");
        Work work = new Work(name, told);
        if (told.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(told.getLongValue("suspend_ms"));
                return work.isDone(messages, context.getMessageQueue())
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                work.isDone(messages, context.getMessageQueue())
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        consumers.put(name, consumer);
        while (told.getBooleanValue("await_queue") && !hasQueue(consumer, told.getString("topic"))) {
            Thread.sleep(POLL_MS);
        }
    }

    /** Whether it has a queue of the topic, and so has decided where to start. */
    private static boolean hasQueue(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().stream().anyMatch(queue -> queue.getTopic().equals(topic));
    }

    private static void startFrom(DefaultMQPushConsumer consumer, JSONObject told) {
        String from = told.getString("from");
        if (from == null || from.equals("first")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        } else if (from.equals("last")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        } else {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            Date date = new Date(Long.parseLong(from));
            consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(date));
        }
    }

    /** The work of a consumer on a message: it fails, replies or is content. */
    private class Work {
        private final String name;
        private final JSONObject failTimes;
        private final String replyWith;
        private final Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();

        Work(String name, JSONObject told) {
            this.name = name;
            // How often each key fails before it is content; all others never do.
            this.failTimes = told.containsKey("fail_times")
                ? told.getJSONObject("fail_times") : new JSONObject();
            this.replyWith = told.getString("reply_with");
        }

        boolean isDone(List<MessageExt> messages, MessageQueue queue) {
            boolean done = true;
            for (MessageExt message : messages) {
                done &= isDone(message, queue);
            }
            return done;
        }

        private boolean isDone(MessageExt message, MessageQueue queue) {
            int before = seen.computeIfAbsent(message.getKeys(), key -> new AtomicInteger())
                .getAndIncrement();
            boolean done = before >= failTimes.getIntValue(message.getKeys());
            printReceived(name, message, queue, done);
            if (done && replyWith != null) {
                reply(message);
            }
            return done;
        }

        private void reply(MessageExt question) {
            String body = "re:" + new String(question.getBody(), StandardCharsets.UTF_8);
            try {
                Message reply = MessageUtil.createReplyMessage(
                    question, body.getBytes(StandardCharsets.UTF_8));
                SendResult result = producers.get(replyWith).send(reply, CALL_TIMEOUT_MS);
                print("replied", "by", name, "key", question.getKeys(),
                    "status", result.getSendStatus().name());
            } catch (Exception problem) {
                problem.printStackTrace();
                print("not_replied", "by", name, "key", question.getKeys(),
                    "text", problem.toString());
            }
        }
    }

    private static void printReceived(
        String name, MessageExt message, MessageQueue queue, boolean done) {
        print("received", "by", name, "key", message.getKeys(),
            "body", new String(message.getBody(), StandardCharsets.UTF_8),
            "topic", message.getTopic(), "broker", queue.getBrokerName(),
            "queue_id", queue.getQueueId(), "queue_topic", queue.getTopic(),
            "queue_offset", message.getQueueOffset(),
            "reconsume_times", message.getReconsumeTimes(), "done", done,
            "store_ms", message.getStoreTimestamp(), "message_id", message.getMsgId(),
            "properties", message.getProperties());
    }

    private static void print(String event, Object... pairs) {
        JSONObject line = new JSONObject(true);
        line.put("event", event);
        for (int at = 0; at < pairs.length; at += 2) {
            line.put((String) pairs[at], pairs[at + 1]);
        }
        print(line);
    }

    private static void print(JSONObject line) {
        String text = line.toJSONString();
        synchronized (KindDriver.class) {
            out.println(text);
        }
    }
}
