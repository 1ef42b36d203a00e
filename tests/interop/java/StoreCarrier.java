import java.io.BufferedInputStream;
import java.io.BufferedWriter;
import java.io.DataInputStream;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
// MessageExtBrokerInner lives in the first package on 5.x and in the second on 4.9.x.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Carries a store folder across: opens it with Apache RocketMQ's own DefaultMessageStore, does
 * the steps asked for, and writes down what Apache saw.
 *
 * <p>Usage: {@code StoreCarrier OPTIONS STEP...}, where OPTIONS is a properties file. Its keys are
 * Apache's store settings, and for us: {@code contrail.out} (folder for reports),
 * {@code contrail.queues}, {@code contrail.keys}, {@code contrail.records} and
 * {@code contrail.messages} (inputs of the steps below) and {@code contrail.batchTopics}.
 *
 * <table>
 * <tr><td>read</td><td>every message of the listed queues, by queue, to messages.tsv; every
 * listed key, by index, to keys.tsv; every listed record, by place, to records.tsv</td></tr>
 * <tr><td>append</td><td>the messages of the messages file, to appended.tsv</td></tr>
 * <tr><td>dispatch</td><td>wait until queues and index have caught up with the log</td></tr>
 * <tr><td>halt</td><td>end the process on the spot, as a crash would: {@code abort} stays</td></tr>
 * </table>
 *
 * <p>Without {@code halt} the store is shut down in order at the end.
 */
public class StoreCarrier {
    private static final int SINGLE = 0;
    private static final int SPLIT_BATCH = 1;
    private static final int INNER_BATCH = 2;
    private static final int PHYSICAL_OFFSET_AT = 28;
    private static final int QUERY_COUNT_MAX = 64;

    private final Properties options;
    private final Path out;
    private final DefaultMessageStore store;

    private StoreCarrier(Properties options) throws Exception {
        this.options = options;
        this.out = Paths.get(options.getProperty("contrail.out"));
        this.store = open(options);
    }

    public static void main(String[] arguments) throws Exception {
        Properties options = new Properties();
        options.load(Files.newBufferedReader(Paths.get(arguments[0]), StandardCharsets.UTF_8));
        try {
            new StoreCarrier(options).run(arguments);
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        System.exit(0);
    }

    private void run(String[] arguments) throws Exception {
        if (!store.load()) {
            throw new IllegalStateException("Apache's store refused to load the folder");
        }
        store.start();
        for (int i = 1; i < arguments.length; i++) {
            step(arguments[i]);
        }
        awaitDispatch();
        store.shutdown();
    }

    private void step(String name) throws Exception {
        switch (name) {
            case "read":
                awaitDispatch();
                readQueues();
                readKeys();
                readRecords();
                break;
            case "append":
                append();
                break;
            case "dispatch":
                awaitDispatch();
                break;
            case "halt":
                Runtime.getRuntime().halt(0);
                break;
            default:
                throw new IllegalArgumentException("unknown step " + name);
        }
    }

    private void awaitDispatch() throws InterruptedException {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("dispatch did not catch up within a minute");
            }
            Thread.sleep(1);
        }
    }

    // Opening

    private static DefaultMessageStore open(Properties options) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(options, config);
        DefaultMessageStore store = construct(config, topics(options));
        keepOffTheNetwork(store);
        settleScheduling(store);
        return store;
    }

    private static ConcurrentHashMap<String, TopicConfig> topics(Properties options)
        throws Exception {
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String name : options.getProperty("contrail.batchTopics", "").split(",")) {
            if (!name.isEmpty()) {
                TopicConfig topic = new TopicConfig(name);
                Map<String, String> attributes = new HashMap<>();
                attributes.put("queue.type", "BatchCQ");
                TopicConfig.class.getMethod("setAttributes", Map.class).invoke(topic, attributes);
                topics.put(name, topic);
            }
        }
        return topics;
    }

    private static DefaultMessageStore construct(
        MessageStoreConfig config, ConcurrentHashMap<String, TopicConfig> topics) throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager("carrier", false);
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        Object[] values = {config, stats, null, new BrokerConfig(), topics};
        Object[] taken = new Object[constructor.getParameterCount()];
        System.arraycopy(values, 0, taken, 0, taken.length);
        return (DefaultMessageStore) constructor.newInstance(taken);
    }

    /** Replication is no part of this: 5.x gets a silent service, 4.9.x listens on loopback. */
    private static void keepOffTheNetwork(DefaultMessageStore store) throws Exception {
        Field field = DefaultMessageStore.class.getDeclaredField("haService");
        field.setAccessible(true);
        Class<?> type = field.getType();
        if (type.isInterface()) {
            field.set(store, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (proxy, method, given) -> method.getReturnType() == int.class ? (Object) 1
                    : method.getReturnType() == boolean.class ? (Object) true : null));
            return;
        }
        Field accepting = type.getDeclaredField("acceptSocketService");
        accepting.setAccessible(true);
        Object service = accepting.get(field.get(store));
        Field address = service.getClass().getDeclaredField("socketAddressListen");
        address.setAccessible(true);
        address.set(service, new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
    }

    /**
     * On 4.9.x the store itself delivers delayed messages: let it think it already does. It also
     * learns the delay levels only after recovery, so that queue rows rebuilt by recovery would
     * hold tag hashes instead of delivery times (5.x has mended that): tell it beforehand.
     */
    private static void settleScheduling(DefaultMessageStore store) throws Exception {
        for (Field field : DefaultMessageStore.class.getDeclaredFields()) {
            if (field.getName().equals("scheduleMessageService")) {
                field.setAccessible(true);
                Object service = field.get(store);
                Field started = service.getClass().getDeclaredField("started");
                started.setAccessible(true);
                ((AtomicBoolean) started.get(service)).set(true);
                call(service, "parseDelayLevel");
            }
        }
    }

    // Reading

    private void readQueues() throws Exception {
        try (BufferedWriter report = report("messages.tsv")) {
            for (String[] queue : rows("contrail.queues")) {
                readQueue(report, queue[0], Integer.parseInt(queue[1]));
            }
        }
    }

    private void readQueue(BufferedWriter report, String topic, int queueId) throws Exception {
        long next = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        report.write("queue\t" + topic + "\t" + queueId + "\t" + next + "\t" + end + "\n");
        Map<Long, Long> tags = tagsByPhysicalOffset(topic, queueId, next);
        while (next < end) {
            GetMessageResult found = store.getMessage("carrier", topic, queueId, next, 512, null);
            if (found.getStatus() != GetMessageStatus.FOUND) {
                throw new IllegalStateException(
                    topic + "-" + queueId + " at " + next + ": " + found.getStatus());
            }
            for (SelectMappedBufferResult record : found.getMessageMapedList()) {
                long physicalOffset = record.getByteBuffer().getLong(PHYSICAL_OFFSET_AT);
                String tagsCode = String.valueOf(tags.get(physicalOffset));
                report.write("message\t" + describe(record.getByteBuffer()) + "\t" + tagsCode + "\n");
            }
            found.release();
            next = found.getNextBeginOffset();
        }
    }

    private Map<Long, Long> tagsByPhysicalOffset(String topic, int queueId, long from)
        throws Exception {
        Map<Long, Long> tags = new HashMap<>();
        Object queue = store.getConsumeQueue(topic, queueId);
        if (queue == null) {
            return tags;
        }
        if (queue.getClass() == ConsumeQueue.class) {
            collectSimple((ConsumeQueue) queue, from, tags);
        } else {
            collectUnits(queue, from, tags);
        }
        return tags;
    }

    private static void collectSimple(ConsumeQueue queue, long from, Map<Long, Long> tags) {
        long next = from;
        while (next < queue.getMaxOffsetInQueue()) {
            SelectMappedBufferResult rows = queue.getIndexBuffer(next);
            ByteBuffer buffer = rows.getByteBuffer();
            for (int at = 0; at + 20 <= rows.getSize(); at += 20) {
                tags.put(buffer.getLong(at), buffer.getLong(at + 12));
                next++;
            }
            rows.release();
        }
    }

    /** Queues of the other kinds exist on 5.x only, hence the reflection. */
    private static void collectUnits(Object queue, long from, Map<Long, Long> tags)
        throws Exception {
        Method iterate = queue.getClass().getMethod("iterateFrom", long.class);
        iterate.setAccessible(true);
        Iterator<?> units = (Iterator<?>) iterate.invoke(queue, from);
        while (units != null && units.hasNext()) {
            Object unit = units.next();
            tags.put((Long) call(unit, "getPos"), (Long) call(unit, "getTagsCode"));
        }
    }

    private void readKeys() throws Exception {
        try (BufferedWriter report = report("keys.tsv")) {
            for (String[] key : rows("contrail.keys")) {
                QueryMessageResult found =
                    store.queryMessage(key[0], key[1], QUERY_COUNT_MAX, 0, Long.MAX_VALUE);
                StringBuilder line = new StringBuilder(key[0]).append('\t').append(key[1]);
                for (ByteBuffer record : found.getMessageBufferList()) {
                    line.append('\t').append(record.getLong(PHYSICAL_OFFSET_AT));
                }
                found.release();
                report.write(line.append('\n').toString());
            }
        }
    }

    private void readRecords() throws Exception {
        try (BufferedWriter report = report("records.tsv")) {
            for (String[] place : rows("contrail.records")) {
                SelectMappedBufferResult record =
                    store.selectOneMessageByOffset(Long.parseLong(place[0]));
                report.write(describe(record.getByteBuffer()) + "\n");
                record.release();
            }
        }
    }

    private static String describe(ByteBuffer record) throws Exception {
        MessageExt message = MessageDecoder.decode(record.duplicate(), true, false);
        if (message == null) {
            throw new IllegalStateException("Apache could not decode a record");
        }
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Object[] fields = {
            message.getTopic(), message.getQueueId(), message.getQueueOffset(),
            message.getCommitLogOffset(), message.getStoreSize(), message.getSysFlag(),
            message.getFlag(), message.getBornTimestamp(), host(message.getBornHost()),
            message.getStoreTimestamp(), host(message.getStoreHost()),
            message.getReconsumeTimes(), message.getPreparedTransactionOffset(),
            message.getBodyCRC(), body.length, digest(ByteBuffer.wrap(body)),
            digest(record.duplicate()), properties(message.getProperties())};
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        return line.toString();
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        byte[] ip = host.getAddress().getAddress();
        ByteBuffer packed = ByteBuffer.allocate(ip.length + 4).put(ip).putInt(host.getPort());
        return hex(packed.array());
    }

    private static String properties(Map<String, String> properties) {
        StringBuilder text = new StringBuilder();
        if (properties == null) {
            return "";
        }
        for (Map.Entry<String, String> pair : new TreeMap<>(properties).entrySet()) {
            text.append(pair.getKey()).append('\u0001').append(pair.getValue()).append('\u0002');
        }
        return text.toString();
    }

    private static String digest(ByteBuffer bytes) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-1");
        digest.update(bytes);
        return hex(digest.digest());
    }

    private static String hex(byte[] bytes) {
        return String.format("%0" + 2 * bytes.length + "x", new BigInteger(1, bytes));
    }

    // Appending

    private void append() throws Exception {
        Path path = Paths.get(options.getProperty("contrail.messages"));
        try (BufferedWriter report = report("appended.tsv");
            DataInputStream messages =
                new DataInputStream(new BufferedInputStream(Files.newInputStream(path)))) {
            while (true) {
                int kind = messages.read();
                if (kind < 0) {
                    break;
                }
                report.write(put(kind, messages) + "\n");
            }
        }
    }

    private String put(int kind, DataInputStream messages) throws Exception {
        PutMessageResult result;
        if (kind == SPLIT_BATCH) {
            MessageExtBatch batch = new MessageExtBatch();
            fill(batch, messages);
            result = store.putMessages(batch);
        } else if (kind == SINGLE || kind == INNER_BATCH) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            byte[] properties = fill(message, messages);
            String text = new String(properties, StandardCharsets.UTF_8);
            // Only an inner batch needs the mapping: Apache adds its base offset to it. For the
            // others the string is stored as it is, and 4.9.x would reschedule on seeing DELAY.
            if (kind == INNER_BATCH) {
                MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(text));
            }
            message.setPropertiesString(text);
            result = store.putMessage(message);
        } else {
            throw new IOException("unknown kind of message " + kind);
        }
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("append failed: " + result);
        }
        AppendMessageResult appended = result.getAppendMessageResult();
        return appended.getLogicsOffset() + "\t" + appended.getWroteOffset() + "\t"
            + appended.getWroteBytes() + "\t" + appended.getMsgNum() + "\t" + appended.getMsgId();
    }

    private static byte[] fill(MessageExt message, DataInputStream from) throws Exception {
        message.setTopic(new String(bytes(from), StandardCharsets.UTF_8));
        message.setQueueId(from.readInt());
        message.setBody(bytes(from));
        final byte[] properties = bytes(from);
        message.setFlag(from.readInt());
        message.setSysFlag(from.readInt());
        message.setBornTimestamp(from.readLong());
        message.setBornHost(unpack(bytes(from)));
        message.setReconsumeTimes(from.readInt());
        message.setPreparedTransactionOffset(from.readLong());
        message.setStoreHost(unpack(bytes(from)));
        MessageAccessor.setProperties(message, new HashMap<>());
        return properties;
    }

    private static byte[] bytes(DataInputStream from) throws IOException {
        byte[] value = new byte[from.readInt()];
        from.readFully(value);
        return value;
    }

    private static InetSocketAddress unpack(byte[] packed) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(packed);
        byte[] ip = new byte[packed.length - 4];
        buffer.get(ip);
        return new InetSocketAddress(InetAddress.getByAddress(ip), buffer.getInt());
    }

    // Files

    private BufferedWriter report(String name) throws IOException {
        return Files.newBufferedWriter(out.resolve(name), StandardCharsets.UTF_8);
    }

    private List<String[]> rows(String option) throws IOException {
        List<String[]> rows = new ArrayList<>();
        String path = options.getProperty(option);
        if (path != null) {
            byte[] text = Files.readAllBytes(Paths.get(path));
            for (String line : new String(text, StandardCharsets.UTF_8).split("\n")) {
                if (!line.isEmpty()) {
                    rows.add(line.split("\t", -1));
                }
            }
        }
        return rows;
    }

    private static Object call(Object target, String method) throws Exception {
        return target.getClass().getMethod(method).invoke(target);
    }
}
