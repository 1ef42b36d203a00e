import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Drives Apache's Java client: one command with a JSON object of arguments, one JSON object per
 * line of output. The same source is compiled against 4.9 and 5.x.
 */
public class ClientDriver {
    private static final String[] SEND_MODES = {"sync", "async", "oneway", "batch", "compressed"};
    // Any topic that brokers create by themselves starts as a copy of this one.
    private static final String TEMPLATE_TOPIC = "TBW102";
    private static final int COMPRESS_OVER_BYTES = 1024;
    private static final int PULL_COUNT_MAX = 32;
    private static final int RETRY_PAUSE_MS = 100;
    // By default 30 s each; a test that stops brokers would wait for them.
    private static final int ROUTE_INTERVAL_MS = 1000;
    private static final int HEARTBEAT_INTERVAL_MS = 1000;
    // By default 3 s, in which a busy machine may not even load the classes of the first call.
    private static final int CALL_TIMEOUT_MS = 20_000;

    private static PrintStream out;

    private final JSONObject arguments;
    private final CountDownLatch stop = new CountDownLatch(1);
    private final AtomicInteger receivedCount = new AtomicInteger();

    private ClientDriver(JSONObject arguments) {
        this.arguments = arguments;
    }

    public static void main(String[] line) throws Exception {
        // Events alone go to standard output; whatever else prints there is a log.
        out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        JSONObject arguments = JSON.parseObject(line.length > 1 ? line[1] : "{}");
        if (arguments.containsKey("rebalance_ms")) {
            String interval = arguments.getString("rebalance_ms");
            System.setProperty("rocketmq.client.rebalance.waitInterval", interval);
        }
        try {
            new ClientDriver(arguments).run(line[0]);
        } catch (Throwable problem) {
            problem.printStackTrace();
            print("error", "text", problem.toString());
            Runtime.getRuntime().halt(3);
        }
        System.exit(0);
    }

    private void run(String command) throws Exception {
        switch (command) {
            case "capabilities":
                capabilities();
                return;
            case "send":
                stopWhenInputEnds();
                send();
                return;
            case "push":
                stopWhenInputEnds();
                push();
                return;
            case "pull":
                stopWhenInputEnds();
                pull();
                return;
            case "litepull":
                stopWhenInputEnds();
                litePull();
                return;
            case "query":
                query();
                return;
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private static void capabilities() {
        Map<String, Object> commands = new LinkedHashMap<>();
        commands.put("send", Arrays.asList(SEND_MODES));
        commands.put("push",
            Arrays.asList("concurrently", "orderly", "broadcasting", "TAG", "SQL92"));
        commands.put("pull", Collections.emptyList());
        commands.put("litepull", Arrays.asList("subscribe", "assign"));
        commands.put("query", Arrays.asList("id", "key", "unique_key"));
        String version = MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION);
        print("capabilities", "client", "java", "version", version, "commands", commands);
    }

    // Sending.

    private void send() throws Exception {
        DefaultMQProducer producer = producer();
        producer.start();
        String mode = text("mode", "sync");
        int count = arguments.getIntValue("count");
        int start = arguments.getIntValue("start");
        if (mode.equals("batch")) {
            sendBatch(producer, start, count);
        } else if (mode.equals("async")) {
            sendAsync(producer, start, count);
        } else {
            for (int number = start; number < start + count && !stopped(0); number++) {
                sendOne(producer, mode, number);
                stopped(arguments.getLongValue("pause_ms"));
            }
        }
        if (mode.equals("oneway")) {
            waitUntilRead(producer);
        }
        producer.shutdown();
        print("done", "count", count);
    }

    private DefaultMQProducer producer() {
        DefaultMQProducer producer = new DefaultMQProducer(arguments.getString("group"), signer());
        configure(producer);
        producer.setSendMsgTimeout(CALL_TIMEOUT_MS);
        if (text("mode", "").equals("compressed")) {
            producer.setCompressMsgBodyOverHowmuch(COMPRESS_OVER_BYTES);
        }
        return producer;
    }

    private void sendOne(DefaultMQProducer producer, String mode, int number) throws Exception {
        Message message = message(number);
        if (mode.equals("oneway")) {
            sendOneWay(producer, message);
            print("sent", "key", message.getKeys(), "status", "ONEWAY");
            return;
        }
        boolean forever = arguments.getBooleanValue("retry_forever");
        while (true) {
            try {
                SendResult result = sendSync(producer, message);
                if (!forever || result.getSendStatus() == SendStatus.SEND_OK) {
                    printSent(message.getKeys(), result);
                    return;
                }
                print("retry", "key", message.getKeys(), "text", result.getSendStatus());
            } catch (Exception problem) {
                String event = forever ? "retry" : "error";
                print(event, "key", message.getKeys(), "text", problem.toString());
                if (!forever) {
                    return;
                }
            }
            if (stopped(RETRY_PAUSE_MS)) {
                return;
            }
        }
    }

    private SendResult sendSync(DefaultMQProducer producer, Message message) throws Exception {
        Object wanted = arguments.get("queue_selector");
        if (wanted == null) {
            return producer.send(message);
        }
        return producer.send(message, selector(wanted), message.getKeys());
    }

    private void sendOneWay(DefaultMQProducer producer, Message message) throws Exception {
        Object wanted = arguments.get("queue_selector");
        if (wanted == null) {
            producer.sendOneway(message);
        } else {
            producer.sendOneway(message, selector(wanted), message.getKeys());
        }
    }

    /** "hash" spreads by key; a number is a queue id, on the first broker by name. */
    private static MessageQueueSelector selector(Object wanted) {
        if (wanted.equals("hash")) {
            return new SelectMessageQueueByHash();
        }
        int queueId = ((Number) wanted).intValue();
        return (queues, message, key) -> new TreeSet<>(queues).stream()
            .filter(queue -> queue.getQueueId() == queueId).findFirst().get();
    }

    private void sendAsync(DefaultMQProducer producer, int start, int count) throws Exception {
        CountDownLatch open = new CountDownLatch(count);
        for (int number = start; number < start + count; number++) {
            Message message = message(number);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    printSent(message.getKeys(), result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable problem) {
                    print("error", "key", message.getKeys(), "text", problem.toString());
                    open.countDown();
                }
            });
        }
        open.await();
    }

    private void sendBatch(DefaultMQProducer producer, int start, int count) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int number = start; number < start + count; number++) {
            messages.add(message(number));
        }
        SendResult result = producer.send(messages);
        String[] ids = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        MessageQueue queue = result.getMessageQueue();
        for (int at = 0; at < count; at++) {
            print("sent", "key", messages.get(at).getKeys(), "message_id", ids[at],
                "offset_message_id", offsetIds[at], "queue_id", queue.getQueueId(),
                "queue_offset", result.getQueueOffset() + at, "broker", queue.getBrokerName(),
                "status", result.getSendStatus());
        }
    }

    /** A question on each broker's connection: when it is answered, what went before was read. */
    private void waitUntilRead(DefaultMQProducer producer) throws MQClientException {
        TreeSet<String> brokers = new TreeSet<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(TEMPLATE_TOPIC)) {
            brokers.add(queue.getBrokerName());
        }
        for (String broker : brokers) {
            producer.maxOffset(new MessageQueue(arguments.getString("topic"), broker, 0));
        }
    }

    private Message message(int number) {
        String tag = arguments.getString("tag");
        if (arguments.containsKey("tags")) {
            List<Object> tags = arguments.getJSONArray("tags");
            tag = (String) tags.get(Math.floorMod(number, tags.size()));
        }
        StringBuilder body = new StringBuilder("body-" + number);
        while (body.length() < arguments.getIntValue("body_bytes")) {
            body.append('.');
        }
        byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
        Message message = new Message(arguments.getString("topic"), tag, "k-" + number, bytes);
        if (arguments.containsKey("properties")) {
            arguments.getJSONObject("properties")
                .forEach((name, value) -> message.putUserProperty(name, value.toString()));
        }
        return message;
    }

    // Consuming.

    private void push() throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(arguments.getString("group"), signer(), strategy());
        configure(consumer);
        consumer.setConsumeFromWhere(fromWhere());
        if (arguments.getBooleanValue("broadcasting")) {
            setBroadcasting(consumer);
        }
        consumer.subscribe(arguments.getString("topic"), messageSelector());
        if (arguments.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                received(messages, context.getMessageQueue().getBrokerName());
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                received(messages, context.getMessageQueue().getBrokerName());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        print("ready");
        stopped(timeoutMs());
        consumer.shutdown();
        print("done", "count", receivedCount.get());
    }

    /** Between 4.9 and 5.x the enum moved to another package. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class<?> model = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf((Class<Enum>) model, "BROADCASTING"));
            }
        }
    }

    @SuppressWarnings("deprecation")
    private void pull() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(arguments.getString("group"), signer());
        configure(consumer);
        consumer.start();
        print("ready");
        String topic = arguments.getString("topic");
        Map<MessageQueue, Long> places = new LinkedHashMap<>();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs());
        while (System.nanoTime() < deadline && !stopped(0)) {
            // Asked for anew each time: a topic made by sending appears broker by broker.
            for (MessageQueue queue : wantedQueues(queuesOf(consumer, topic))) {
                long from = places.getOrDefault(queue, arguments.getLongValue("queue_offset"));
                PullResult result = consumer.pull(queue, "*", from, PULL_COUNT_MAX);
                places.put(queue, result.getNextBeginOffset());
                if (result.getMsgFoundList() != null) {
                    received(result.getMsgFoundList(), queue.getBrokerName());
                }
            }
            stopped(RETRY_PAUSE_MS);
        }
        consumer.shutdown();
        print("done", "count", receivedCount.get());
    }

    private static Collection<MessageQueue> queuesOf(DefaultMQPullConsumer consumer, String topic) {
        try {
            return consumer.fetchSubscribeMessageQueues(topic);
        } catch (MQClientException noRouteYet) {
            noRouteYet.printStackTrace();
            return Collections.emptySet();
        }
    }

    private void litePull() throws Exception {
        String group = arguments.getString("group");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, signer());
        configure(consumer);
        consumer.setConsumeFromWhere(fromWhere());
        if (!arguments.getBooleanValue("assign")) {
            consumer.subscribe(arguments.getString("topic"), messageSelector());
        }
        consumer.start();
        print("ready");
        if (arguments.getBooleanValue("assign")) {
            assign(consumer);
        }
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs());
        while (System.nanoTime() < deadline && !stopped(0)) {
            for (MessageExt message : consumer.poll(RETRY_PAUSE_MS)) {
                received(Collections.singletonList(message), message.getBrokerName());
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        print("done", "count", receivedCount.get());
    }

    private void assign(DefaultLitePullConsumer consumer) throws Exception {
        Collection<MessageQueue> all = consumer.fetchMessageQueues(arguments.getString("topic"));
        Collection<MessageQueue> queues = wantedQueues(all);
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seek(queue, arguments.getLongValue("queue_offset"));
        }
    }

    private Collection<MessageQueue> wantedQueues(Collection<MessageQueue> queues) {
        TreeSet<MessageQueue> wanted = new TreeSet<>(queues);
        Integer queueId = arguments.getInteger("queue_id");
        wanted.removeIf(queue -> queueId != null && queue.getQueueId() != queueId);
        return wanted;
    }

    private MessageSelector messageSelector() {
        String expression = text("expression", "*");
        boolean sql = text("expression_type", "TAG").equals("SQL92");
        return sql ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
    }

    private ConsumeFromWhere fromWhere() {
        boolean last = text("from", "first").equals("last");
        return last ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
    }

    private void received(List<MessageExt> messages, String broker) {
        Integer count = arguments.getInteger("count");
        for (MessageExt message : messages) {
            printMessage("received", message, broker);
            if (receivedCount.incrementAndGet() == (count == null ? -1 : count)) {
                stop.countDown();
            }
        }
    }

    // Querying.

    private void query() throws Exception {
        DefaultMQProducer producer = producer();
        producer.start();
        List<MessageExt> found = find(producer, arguments.getString("value"));
        found.forEach(message -> printMessage("found", message, message.getBrokerName()));
        producer.shutdown();
        print("done", "count", found.size());
    }

    private List<MessageExt> find(DefaultMQProducer producer, String value) throws Exception {
        String topic = arguments.getString("topic");
        switch (arguments.getString("by")) {
            case "id":
                return Collections.singletonList(producer.viewMessage(topic, value));
            case "unique_key":
                return Collections.singletonList(
                    producer.getDefaultMQProducerImpl().queryMessageByUniqKey(topic, value));
            case "key":
                return findByKey(producer, topic, value);
            default:
                throw new IllegalArgumentException("by is id, key or unique_key");
        }
    }

    private List<MessageExt> findByKey(DefaultMQProducer producer, String topic, String key)
        throws InterruptedException {
        Long begin = arguments.getLong("begin_ms");
        Long end = arguments.getLong("end_ms");
        try {
            return producer.queryMessage(topic, key, PULL_COUNT_MAX, begin == null ? 0 : begin,
                end == null ? Long.MAX_VALUE : end).getMessageList();
        } catch (MQClientException nothingFound) {
            nothingFound.printStackTrace();
            return Collections.emptyList();
        }
    }

    // Shared by all commands.

    /** The hook that signs, if the environment says for whom. */
    private static RPCHook signer() {
        String accessKey = System.getenv("DRIVER_ACCESS_KEY");
        if (accessKey == null) {
            return null;
        }
        // By name: up to 5.3.2 the class came with another artifact than the client.
        String room = "org.apache.rocketmq.acl.common.";
        try {
            Class<?> credentials = Class.forName(room + "SessionCredentials");
            Object given = credentials.getConstructor(String.class, String.class)
                .newInstance(accessKey, System.getenv("DRIVER_SECRET_KEY"));
            return (RPCHook) Class.forName(room + "AclClientRPCHook")
                .getConstructor(credentials).newInstance(given);
        } catch (ReflectiveOperationException problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static AllocateMessageQueueStrategy strategy() {
        return new AllocateMessageQueueAveragely();
    }

    private void configure(ClientConfig client) {
        client.setNamesrvAddr(arguments.getString("namesrv"));
        client.setPollNameServerInterval(ROUTE_INTERVAL_MS);
        client.setHeartbeatBrokerInterval(HEARTBEAT_INTERVAL_MS);
        client.setMqClientApiTimeout(CALL_TIMEOUT_MS);
        if (arguments.containsKey("instance")) {
            client.setInstanceName(arguments.getString("instance"));
        }
    }

    private String text(String name, String otherwise) {
        String value = arguments.getString(name);
        return value == null ? otherwise : value;
    }

    private long timeoutMs() {
        return (long) (arguments.getDoubleValue("timeout_s") * 1000);
    }

    /** Wait for that long and say whether there is a reason to stop. */
    private boolean stopped(long timeoutMs) throws InterruptedException {
        return stop.await(timeoutMs, TimeUnit.MILLISECONDS);
    }

    private void stopWhenInputEnds() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException closed) {
                closed.printStackTrace();
            }
            stop.countDown();
        });
        watcher.setDaemon(true);
        watcher.start();
    }

    private static void printSent(String key, SendResult result) {
        MessageQueue queue = result.getMessageQueue();
        print("sent", "key", key, "message_id", result.getMsgId(),
            "offset_message_id", result.getOffsetMsgId(), "queue_id", queue.getQueueId(),
            "queue_offset", result.getQueueOffset(), "broker", queue.getBrokerName(),
            "status", result.getSendStatus());
    }

    private static void printMessage(String event, MessageExt message, String broker) {
        print(event, "key", message.getKeys(),
            "body", new String(message.getBody(), StandardCharsets.UTF_8),
            "tag", message.getTags(), "topic", message.getTopic(), "queue_id", message.getQueueId(),
            "queue_offset", message.getQueueOffset(), "broker", broker,
            "reconsume_times", message.getReconsumeTimes(),
            "thread", Thread.currentThread().getName(), "message_id", message.getMsgId());
    }

    private static void print(String event, Object... pairs) {
        JSONObject line = new JSONObject(true);
        line.put("event", event);
        for (int at = 0; at < pairs.length; at += 2) {
            line.put((String) pairs[at], pairs[at + 1]);
        }
        String text = line.toJSONString();
        synchronized (ClientDriver.class) {
            out.println(text);
        }
    }
}
