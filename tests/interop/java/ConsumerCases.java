import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The answers to given cases by the parts of Apache RocketMQ's consumer that need no broker.
 *
 * <p>{@code ConsumerCases allocate CASES ANSWERS} shares queues. Both files are ASCII lines of
 * fields separated by tabs, in which a backslash and everything beyond printable ASCII is written
 * as a backslash, u and four hex digits of a UTF-16 unit. A case is: strategy, group, client id,
 * then three lists, each after its length: queues (topic, broker name and id each), client ids, and
 * what the strategy needs. An answer is {@code OK}, the strategy's name and the client's queues, or
 * {@code ERROR}.
 *
 * <p>{@code ConsumerCases offsets READ WRITE} reads an offsets.json and writes its entries, one more
 * each, to another.
 */
public class ConsumerCases {
    public static void main(String[] arguments) throws Exception {
        try {
            Path from = Paths.get(arguments[1]);
            Path to = Paths.get(arguments[2]);
            if (arguments[0].equals("allocate")) {
                allocateAll(from, to);
            } else {
                carryOffsets(from, to);
            }
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        System.exit(0);
    }

    private static void carryOffsets(Path from, Path to) throws IOException {
        String text = new String(Files.readAllBytes(from), StandardCharsets.UTF_8);
        OffsetSerializeWrapper read =
            OffsetSerializeWrapper.fromJson(text, OffsetSerializeWrapper.class);
        OffsetSerializeWrapper written = new OffsetSerializeWrapper();
        for (Map.Entry<MessageQueue, AtomicLong> entry : read.getOffsetTable().entrySet()) {
            MessageQueue queue = new MessageQueue(entry.getKey().getTopic(),
                entry.getKey().getBrokerName(), entry.getKey().getQueueId());
            written.getOffsetTable().put(queue, new AtomicLong(entry.getValue().get() + 1));
        }
        Files.write(to, written.toJson(true).getBytes(StandardCharsets.UTF_8));
    }

    private static void allocateAll(Path cases, Path answers) throws IOException {
        try (BufferedWriter out = Files.newBufferedWriter(answers, StandardCharsets.US_ASCII)) {
            for (String line : Files.readAllLines(cases, StandardCharsets.US_ASCII)) {
                out.write(answer(new Fields(line)));
                out.write('\n');
            }
        }
    }

    private static String answer(Fields fields) {
        String name = fields.text();
        String group = fields.text();
        String clientId = fields.text();
        List<MessageQueue> queues = fields.queues();
        List<String> clientIds = fields.texts();
        AllocateMessageQueueStrategy strategy = strategy(name, fields);
        Collections.sort(queues);
        Collections.sort(clientIds);
        List<MessageQueue> share;
        try {
            share = strategy.allocate(group, clientId, queues, clientIds);
        } catch (IllegalArgumentException refusal) {
            return "ERROR";
        }
        StringBuilder line = new StringBuilder("OK\t").append(strategy.getName());
        for (MessageQueue queue : share) {
            line.append('\t').append(encoded(queue.getTopic()))
                .append('\t').append(encoded(queue.getBrokerName()))
                .append('\t').append(queue.getQueueId());
        }
        return line.toString();
    }

    private static AllocateMessageQueueStrategy strategy(String name, Fields fields) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                List<String> counts = fields.texts();
                return counts.isEmpty() ? new AllocateMessageQueueConsistentHash()
                    : new AllocateMessageQueueConsistentHash(Integer.parseInt(counts.get(0)));
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(fields.texts()));
                return rooms;
            case "CONFIG":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(fields.queues());
                return config;
            default:
                String inner = name.substring("MACHINE_ROOM_NEARBY-".length());
                return new AllocateMachineRoomNearby(strategy(inner, fields), new Prefixes());
        }
    }

    /** A machine room is what stands before the first minus; without one there is none. */
    private static final class Prefixes implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return consumerDeployIn(queue.getBrokerName());
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.substring(0, Math.max(0, clientId.indexOf('-')));
        }
    }

    /** One line, field after field. */
    private static final class Fields {
        private final String[] fields;
        private int next = 0;

        Fields(String line) {
            fields = line.split("\t", -1);
        }

        String text() {
            return decoded(fields[next++]);
        }

        List<String> texts() {
            List<String> texts = new ArrayList<>();
            for (int left = Integer.parseInt(text()); left > 0; left--) {
                texts.add(text());
            }
            return texts;
        }

        List<MessageQueue> queues() {
            List<MessageQueue> queues = new ArrayList<>();
            for (int left = Integer.parseInt(text()); left > 0; left--) {
                queues.add(new MessageQueue(text(), text(), Integer.parseInt(text())));
            }
            return queues;
        }
    }

    private static String decoded(String field) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < field.length(); i++) {
            if (field.charAt(i) == '\\') {
                text.append((char) Integer.parseInt(field.substring(i + 2, i + 6), 16));
                i += 5;
            } else {
                text.append(field.charAt(i));
            }
        }
        return text.toString();
    }

    private static String encoded(String text) {
        StringBuilder field = new StringBuilder();
        for (char unit : text.toCharArray()) {
            if (unit < ' ' || unit > '~' || unit == '\\') {
                field.append(String.format("\\u%04x", (int) unit));
            } else {
                field.append(unit);
            }
        }
        return field.toString();
    }
}
