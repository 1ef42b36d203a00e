import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's Java client as one member of a group whose other members are of another make.
 *
 * <p>A line of standard input is one JSON object: what to {@code do}, under which {@code id}, and
 * its arguments. Lines of standard output are events; the one that ends a command is {@code ok} or
 * {@code failed} with its id. Bodies travel in Base64. The same source is compiled against 4.9 and
 * 5.x.
 */
public class GroupMember {
    private static final int CALL_TIMEOUT_MS = 20_000;
    private static final int INTERVAL_MS = 1000;
    private static final int COMPRESS_OVER_BYTES = 4096;

    private static PrintStream out;

    private final String namesrv;
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();

    private GroupMember(String namesrv) {
        this.namesrv = namesrv;
    }

    public static void main(String[] line) throws Exception {
        // Events alone go to standard output; whatever else prints there is a log.
        out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        // By default 20 s: a missed notification would make every join that long.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "" + INTERVAL_MS);
        System.setProperty("rocketmq.client.rebalance.minInterval", "" + INTERVAL_MS / 2);
        new GroupMember(JSON.parseObject(line[1]).getString("namesrv")).serve();
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
            case "join":
                join(told, answer);
                return;
            case "queues":
                queues(told, answer);
                return;
            case "leave":
                consumers.remove(told.getString("name")).shutdown();
                return;
            case "send":
                send(told);
                return;
            default:
                throw new IllegalArgumentException("no such command: " + told);
        }
    }

    private void configure(ClientConfig client, String name) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(name);
        client.setPollNameServerInterval(INTERVAL_MS);
        client.setHeartbeatBrokerInterval(INTERVAL_MS);
        client.setPersistConsumerOffsetInterval(INTERVAL_MS / 2);
        client.setMqClientApiTimeout(CALL_TIMEOUT_MS);
    }

    // Membership.

    private void join(JSONObject told, JSONObject answer) throws Exception {
        String name = told.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(told.getString("group"));
        configure(consumer, name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(strategy(told.getString("strategy")));
        consumer.subscribe(told.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> printReceived(name, message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.put(name, consumer);
        answer.put("client_id",
            consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            default:
                throw new IllegalArgumentException("no such strategy: " + name);
        }
    }

    private void queues(JSONObject told, JSONObject answer) {
        JSONArray queues = new JSONArray();
        Map<MessageQueue, ProcessQueue> table = consumers.get(told.getString("name"))
            .getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        for (MessageQueue queue : new TreeSet<>(table.keySet())) {
            ProcessQueue held = table.get(queue);
            if (queue.getTopic().equals(told.getString("topic")) && held != null
                && !held.isDropped()) {
                JSONArray row = new JSONArray();
                row.add(queue.getBrokerName());
                row.add(queue.getQueueId());
                queues.add(row);
            }
        }
        answer.put("queues", queues);
    }

    private static void printReceived(String name, MessageExt message) {
        print("received", "by", name, "key", message.getKeys(), "tag", message.getTags(),
            "body", Base64.getEncoder().encodeToString(message.getBody()),
            "flag", message.getFlag(), "message_id", message.getMsgId(),
            "queue_id", message.getQueueId(), "queue_offset", message.getQueueOffset(),
            "sys_flag", message.getSysFlag(), "properties", message.getProperties());
    }

    // Sending.

    private void send(JSONObject told) throws Exception {
        if (told.containsKey("compression")) {
            // Read when a producer is made; 4.9 knows zlib only and does not look.
            System.setProperty("rocketmq.message.compressType", told.getString("compression"));
        }
        DefaultMQProducer producer = new DefaultMQProducer(told.getString("group"));
        configure(producer, told.getString("name"));
        producer.setSendMsgTimeout(CALL_TIMEOUT_MS);
        producer.setCompressMsgBodyOverHowmuch(COMPRESS_OVER_BYTES);
        producer.start();
        try {
            List<Message> messages = new ArrayList<>();
            for (Object one : told.getJSONArray("messages")) {
                messages.add(message(told.getString("topic"), (JSONObject) one));
            }
            if (told.getBooleanValue("batch")) {
                require(producer.send(messages));
            } else {
                for (Message message : messages) {
                    require(producer.send(message));
                }
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void require(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    private static Message message(String topic, JSONObject told) {
        Message message = new Message(topic, told.getString("tag"), told.getString("key"),
            told.getIntValue("flag"), Base64.getDecoder().decode(told.getString("body")), true);
        told.getJSONObject("properties").forEach(
            (name, value) -> message.putUserProperty(name, (String) value));
        return message;
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
        synchronized (GroupMember.class) {
            out.println(text);
        }
    }
}
