import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.trace.TraceView;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.remoting.protocol.header.GetTopicConfigRequestHeader;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicConfigAndQueueMapping;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.api.MessageTrack;

/**
 * The requests that the pages of Apache's dashboard send, through the same classes. A line of
 * standard input is one action, its words separated by tabs; the answer is a line with a number of
 * bytes and then that many bytes of JSON: what Apache's classes read out of the answers.
 */
public class DashboardPages {
    private static final long TIMEOUT_MS = 10_000;

    private final String servers;
    private final DefaultMQAdminExt admin;
    private final DefaultMQPullConsumer puller;
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final List<DefaultMQProducer> producers = new ArrayList<>();

    private DashboardPages(String servers) throws Exception {
        this.servers = servers;
        admin = new DefaultMQAdminExt(5_000);
        admin.setNamesrvAddr(servers);
        admin.setInstanceName("dashboard");
        admin.start();
        puller = new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP);
        puller.setNamesrvAddr(servers);
        puller.setInstanceName("dashboard-puller");
        puller.start();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        DashboardPages pages = new DashboardPages(arguments[0]);
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] json = RemotingSerializable.encode(pages.answer(line.split("\t", -1)));
            answers.print(json.length + "\n");
            answers.write(json);
            answers.flush();
        }
        // Nobody waits for goodbyes: the servers end with the test.
        Runtime.getRuntime().halt(0);
    }

    private Object answer(String[] words) {
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        try {
            switch (words[0].split("\\.")[0]) {
                case "hold": return hold(words[0], rest);
                case "home": return home(words[0], rest);
                case "cluster": return cluster(words[0], rest);
                case "topic": return topic(words[0], rest);
                case "consumer": return consumer(words[0], rest);
                case "producer": return admin.examineProducerConnectionInfo(rest[0], rest[1]);
                case "message": return message(words[0], rest);
                case "dlq": return dlq(words[0], rest);
                default: throw new IllegalArgumentException(words[0]);
            }
        } catch (MQBrokerException refusal) {
            return Map.of("refused", refusal.getResponseCode());
        } catch (MQClientException refusal) {
            return Map.of("refused", refusal.getResponseCode());
        } catch (Exception problem) {
            problem.printStackTrace();
            return Map.of("failed", problem.toString());
        }
    }

    // Clients that stay online, for the pages to show.

    private Object hold(String action, String[] words) throws Exception {
        if (action.equals("hold.producer")) {
            DefaultMQProducer producer = new DefaultMQProducer(words[0], true, null);
            producer.setNamesrvAddr(servers);
            producer.setInstanceName(words[0]);
            producer.start();
            producers.add(producer);
            List<Map<String, Object>> sent = new ArrayList<>();
            for (int place = 2; place < words.length; place++) {
                byte[] body = ("body-" + words[place]).getBytes(StandardCharsets.UTF_8);
                sent.add(told(producer.send(
                    new Message(words[1], "TagA", words[place], body), TIMEOUT_MS)));
            }
            producer.getDefaultMQProducerImpl().getMqClientFactory()
                .sendHeartbeatToAllBrokerWithLock();
            return sent;
        }
        if (action.equals("hold.commit")) {
            // Else they share their queues after 20 s, and tell how far they are after 10 s.
            consumers.forEach(one -> one.getDefaultMQPushConsumerImpl().doRebalance());
            consumers.forEach(one -> one.getDefaultMQPushConsumerImpl().persistConsumerOffset());
            return "committed";
        }
        boolean succeeds = action.equals("hold.consumer");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[0]);
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName(words[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (!succeeds) {
            // The first failure is the last: the message becomes a dead letter.
            consumer.setMaxReconsumeTimes(0);
        }
        consumer.subscribe(words[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean again = messages.get(0).getTopic().startsWith("%DLQ%");
            return succeeds || again ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        consumers.add(consumer);
        return consumer.buildMQClientId();
    }

    // The pages.

    private Object home(String action, String[] words) throws Exception {
        switch (action) {
            case "home.stats":
                return admin.viewBrokerStatsData(words[0], words[1], words[2]);
            case "home.servers":
                return admin.getNameServerAddressList();
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private Object cluster(String action, String[] words) throws Exception {
        if (action.equals("cluster.brokerConfig")) {
            return admin.getBrokerConfig(words[0]);
        }
        ClusterInfo info = admin.examineBrokerClusterInfo();
        Map<String, Object> runtime = new TreeMap<>();
        for (BrokerData broker : info.getBrokerAddrTable().values()) {
            for (String address : broker.getBrokerAddrs().values()) {
                runtime.put(address, admin.fetchBrokerRuntimeStats(address).getTable());
            }
        }
        return Map.of("clusterInfo", info, "runtime", runtime);
    }

    private Object topic(String action, String[] words) throws Exception {
        String topic = words.length > 0 ? words[0] : "";
        switch (action) {
            case "topic.list":
                return admin.fetchAllTopicList().getTopicList();
            case "topic.configs":
                return admin.getAllTopicConfig(words[0], TIMEOUT_MS).getTopicConfigTable();
            case "topic.config":
                return examineTopic(words[0], words[1]);
            case "topic.stats":
                return topicStats(topic);
            case "topic.route":
                return admin.examineTopicRouteInfo(topic);
            case "topic.groups":
                return admin.queryTopicConsumeByWho(topic).getGroupList();
            case "topic.progress":
                return progress(admin.examineConsumeStats(words[1], topic));
            case "topic.create":
                TopicConfig config = new TopicConfig(topic, 4, 4, 6);
                for (String address : masters()) {
                    admin.createAndUpdateTopicConfig(address, config);
                }
                return "created";
            case "topic.createMany":
                List<TopicConfig> many = new ArrayList<>();
                for (int number = 0; number < Integer.parseInt(words[1]); number++) {
                    many.add(new TopicConfig("Piece" + number, 1, 1, 6));
                }
                admin.createAndUpdateTopicConfigList(words[0], many);
                return "created";
            case "topic.delete":
                admin.deleteTopicInBroker(masters(), topic);
                admin.deleteTopicInNameServer(Set.copyOf(admin.getNameServerAddressList()), topic);
                return "deleted";
            case "topic.send":
                return told(sendNormally(topic, words[1], words[2]));
            case "topic.sendTransaction":
                return told(sendInTransaction(topic, words[1], words[2]));
            case "topic.reset":
                return offsets(admin.resetOffsetByTimestamp(
                    topic, words[1], Long.parseLong(words[2]), true));
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private Object consumer(String action, String[] words) throws Exception {
        String group = words.length > 0 ? words[0] : "";
        switch (action) {
            case "consumer.list":
                Set<String> names = new java.util.TreeSet<>();
                for (String address : masters()) {
                    names.addAll(admin.getAllSubscriptionGroup(address, TIMEOUT_MS)
                        .getSubscriptionGroupTable().keySet());
                }
                return names;
            case "consumer.progress":
                return progress(admin.examineConsumeStats(group));
            case "consumer.progressOf":
                return progress(admin.examineConsumeStats(words[1], group, null, 3_000));
            case "consumer.connection":
                return admin.examineConsumerConnectionInfo(group);
            case "consumer.connectionAt":
                return admin.examineConsumerConnectionInfo(group, words[1]);
            case "consumer.running":
                return running(group, words[1]);
            case "consumer.config":
                return examineGroup(words[1], group);
            case "consumer.update":
                SubscriptionGroupConfig config = new SubscriptionGroupConfig();
                config.setGroupName(group);
                config.setRetryMaxTimes(Integer.parseInt(words[1]));
                for (String address : masters()) {
                    admin.createAndUpdateSubscriptionGroupConfig(address, config);
                }
                return "updated";
            case "consumer.delete":
                for (String address : masters()) {
                    admin.deleteSubscriptionGroup(address, group, true);
                    for (String prefix : List.of("%RETRY%", "%DLQ%")) {
                        admin.deleteTopicInBroker(Set.of(address), prefix + group);
                    }
                }
                return "deleted";
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private Object message(String action, String[] words) throws Exception {
        String topic = words[0];
        switch (action) {
            case "message.view":
                return shown(view(topic, words[1]));
            case "message.byKey":
                List<Object> found = new ArrayList<>();
                for (MessageExt one : admin.queryMessage(
                    topic, words[1], 64, 0, System.currentTimeMillis()).getMessageList()) {
                    found.add(shown(one));
                }
                return found;
            case "message.page":
                return page(topic);
            case "message.track":
                List<String> tracks = new ArrayList<>();
                for (MessageTrack track : admin.messageTrackDetail(view(topic, words[1]))) {
                    tracks.add(track.getConsumerGroup() + " " + track.getTrackType());
                }
                return tracks;
            case "message.directly":
                return admin.consumeMessageDirectly(words[2], words[3], topic, words[1]);
            case "message.trace":
                List<String> kinds = new ArrayList<>();
                for (MessageExt one : admin.queryMessage(
                    topic, words[1], 64, 0, System.currentTimeMillis()).getMessageList()) {
                    for (TraceView view : TraceView.decodeFromTraceTransData(words[1], one)) {
                        kinds.add(view.getMsgType() + " " + view.getGroupName()
                            + " " + view.getStatus());
                    }
                }
                return kinds;
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private Object dlq(String action, String[] words) throws Exception {
        String topic = "%DLQ%" + words[0];
        if (action.equals("dlq.page")) {
            admin.examineTopicRouteInfo(topic);
            return page(topic);
        }
        MessageExt letter = view(topic, words[1]);
        Connection client = admin.examineConsumerConnectionInfo(words[0]).getConnectionSet()
            .iterator().next();
        return admin.consumeMessageDirectly(
            words[0], client.getClientId(), topic, letter.getMsgId());
    }

    // How the dashboard asks where the admin client has no call of its own.

    private Object examineTopic(String address, String topic) throws Exception {
        GetTopicConfigRequestHeader header = new GetTopicConfigRequestHeader();
        header.setTopic(topic);
        RemotingCommand answer = invoke(address, RemotingCommand.createRequestCommand(
            RequestCode.GET_TOPIC_CONFIG, header));
        return RemotingSerializable.decode(answer.getBody(), TopicConfigAndQueueMapping.class);
    }

    private Object examineGroup(String address, String group) throws Exception {
        RemotingCommand answer = invoke(address, RemotingCommand.createRequestCommand(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, null));
        SubscriptionGroupConfig found = RemotingSerializable.decode(
            answer.getBody(), SubscriptionGroupWrapper.class).getSubscriptionGroupTable().get(group);
        return found == null ? Map.of() : found;
    }

    private RemotingCommand invoke(String address, RemotingCommand request) throws Exception {
        RemotingCommand answer = admin.getDefaultMQAdminExtImpl().getMqClientInstance()
            .getMQClientAPIImpl().getRemotingClient().invokeSync(address, request, TIMEOUT_MS);
        if (answer.getCode() != 0) {
            throw new MQBrokerException(answer.getCode(), answer.getRemark());
        }
        return answer;
    }

    private MessageExt view(String topic, String uniqueId) throws Exception {
        MQAdminImpl asked =
            admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQAdminImpl();
        Method query = MQAdminImpl.class.getDeclaredMethod("queryMessage", String.class,
            String.class, String.class, int.class, long.class, long.class, boolean.class);
        query.setAccessible(true);
        for (String name : admin.getTopicClusterList(topic)) {
            try {
                QueryResult found = (QueryResult) query.invoke(
                    asked, name, topic, uniqueId, 32, 0L, Long.MAX_VALUE, true);
                return found.getMessageList().get(0);
            } catch (InvocationTargetException refusal) {
                if (!(refusal.getCause() instanceof MQClientException)) {
                    throw refusal;
                }
            }
        }
        throw new MQClientException(ResponseCode.NO_MESSAGE, uniqueId);
    }

    private List<Object> page(String topic) throws Exception {
        List<Object> found = new ArrayList<>();
        long now = System.currentTimeMillis();
        for (MessageQueue queue : puller.fetchSubscribeMessageQueues(topic)) {
            long offset = puller.searchOffset(queue, now - 3_600_000);
            long end = puller.searchOffset(queue, now + 60_000);
            while (offset < end) {
                PullResult pulled = puller.pull(queue, "*", offset, 32);
                if (pulled.getMsgFoundList() == null) {
                    break;
                }
                for (MessageExt one : pulled.getMsgFoundList()) {
                    found.add(shown(one));
                }
                offset = pulled.getNextBeginOffset();
            }
        }
        return found;
    }

    private SendResult sendNormally(String topic, String key, String body) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(MixAll.SELF_TEST_PRODUCER_GROUP);
        return sentBy(producer, topic, key, body);
    }

    private SendResult sendInTransaction(String topic, String key, String body) throws Exception {
        TransactionMQProducer producer =
            new TransactionMQProducer(MixAll.SELF_TEST_PRODUCER_GROUP);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message half, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt half) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return sentBy(producer, topic, key, body);
    }

    private SendResult sentBy(DefaultMQProducer producer, String topic, String key, String body)
        throws Exception {
        Message message = new Message(topic, "TagA", key, body.getBytes(StandardCharsets.UTF_8));
        producer.setInstanceName(String.valueOf(System.nanoTime()));
        producer.setNamesrvAddr(servers);
        producer.start();
        producers.add(producer);
        return producer instanceof TransactionMQProducer
            ? ((TransactionMQProducer) producer).sendMessageInTransaction(message, null)
            : producer.send(message, TIMEOUT_MS);
    }

    private Set<String> masters() throws Exception {
        Set<String> addresses = new java.util.TreeSet<>();
        for (BrokerData broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            addresses.add(broker.selectBrokerAddr());
        }
        return addresses;
    }

    // Parsed objects with keys that JSON can have.

    private Map<String, Object> topicStats(String topic) throws Exception {
        Map<String, Object> rows = new TreeMap<>();
        for (Map.Entry<MessageQueue, TopicOffset> row
            : admin.examineTopicStats(topic).getOffsetTable().entrySet()) {
            rows.put(place(row.getKey()), row.getValue());
        }
        return rows;
    }

    private Map<String, Object> progress(ConsumeStats stats) {
        Map<String, Object> rows = new TreeMap<>();
        stats.getOffsetTable().forEach((queue, offsets) ->
            rows.put(queue.getTopic() + " " + place(queue), offsets));
        return Map.of("total", stats.computeTotalDiff(), "rows", rows);
    }

    private Map<String, Object> running(String group, String client) throws Exception {
        var info = admin.getConsumerRunningInfo(group, client, true);
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("properties", info.getProperties());
        told.put("subscriptions", info.getSubscriptionSet());
        told.put("queues", info.getMqTable().size());
        told.put("status", info.getStatusTable());
        told.put("threads", info.getJstack().contains("ConsumeMessageThread"));
        return told;
    }

    private static Map<String, Object> offsets(Map<MessageQueue, Long> table) {
        Map<String, Object> rows = new TreeMap<>();
        table.forEach((queue, offset) -> rows.put(place(queue), offset));
        return rows;
    }

    private static String place(MessageQueue queue) {
        return queue.getBrokerName() + "/" + queue.getQueueId();
    }

    private static Map<String, Object> told(SendResult sent) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", sent.getSendStatus().name());
        facts.put("id", sent.getMsgId());
        facts.put("offsetId", sent.getOffsetMsgId());
        facts.put("queue", place(sent.getMessageQueue()));
        facts.put("queueOffset", sent.getQueueOffset());
        return facts;
    }

    private static Map<String, Object> shown(MessageExt message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", message.getTopic());
        facts.put("id", message.getMsgId());
        facts.put("keys", message.getKeys());
        facts.put("tags", message.getTags());
        facts.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        facts.put("queue", message.getQueueId());
        facts.put("queueOffset", message.getQueueOffset());
        facts.put("properties", message.getProperties());
        return facts;
    }
}
