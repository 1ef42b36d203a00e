import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageType;

/**
 * Writes and reads message traces with Apache RocketMQ's own encoder.
 *
 * <p>Usage: {@code TraceOracle encode|decode QUESTIONS ANSWERS}, both files of ASCII lines in which
 * a backslash and everything beyond printable ASCII is written as a backslash, u and four hex
 * digits of a UTF-16 unit, and fields are separated by tabs.
 *
 * <table>
 * <tr><td>encode</td><td>a question is a kind and its fields in the order they are written in, an
 * empty one for null; the answer is the written line and its keys, sorted</td></tr>
 * <tr><td>decode</td><td>a question is a written line; the answer is a kind and its fields</td></tr>
 * </table>
 */
public class TraceOracle {
    public static void main(String[] arguments) throws Exception {
        try {
            run(arguments[0].equals("encode"), Paths.get(arguments[1]), Paths.get(arguments[2]));
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        System.exit(0);
    }

    private static void run(boolean encodes, Path questions, Path answers) throws IOException {
        try (BufferedWriter out = Files.newBufferedWriter(answers, StandardCharsets.US_ASCII)) {
            for (String line : Files.readAllLines(questions, StandardCharsets.US_ASCII)) {
                out.write(encodes ? encodedTrace(line) : decodedTrace(line));
                out.write('\n');
            }
        }
    }

    private static String encodedTrace(String line) {
        String[] fields = line.split("\t", -1);
        for (int i = 0; i < fields.length; i++) {
            fields[i] = fields[i].isEmpty() ? null : decoded(fields[i]);
        }
        TraceTransferBean bean = TraceDataEncoder.encoderFromContextBean(context(fields));
        String[] keys = bean.getTransKey().toArray(new String[0]);
        Arrays.sort(keys);
        return encoded(bean.getTransData()) + "\t" + encoded(String.join(" ", keys));
    }

    private static TraceContext context(String[] f) {
        TraceContext context = new TraceContext();
        TraceBean bean = new TraceBean();
        context.setTraceType(TraceType.valueOf(f[0]));
        context.setTraceBeans(Collections.singletonList(bean));
        context.setAccessChannel(AccessChannel.LOCAL);
        if (f[0].equals("SubAfter")) {
            context.setRequestId(f[1]);
            bean.setMsgId(f[2]);
            context.setCostTime(Integer.parseInt(f[3]));
            context.setSuccess(Boolean.parseBoolean(f[4]));
            bean.setKeys(f[5]);
            context.setContextCode(Integer.parseInt(f[6]));
            context.setTimeStamp(Long.parseLong(f[7]));
            context.setGroupName(f[8]);
            return context;
        }
        context.setTimeStamp(Long.parseLong(f[1]));
        context.setRegionId(f[2]);
        context.setGroupName(f[3]);
        if (f[0].equals("SubBefore")) {
            context.setRequestId(f[4]);
            bean.setMsgId(f[5]);
            bean.setRetryTimes(Integer.parseInt(f[6]));
            bean.setKeys(f[7]);
            return context;
        }
        bean.setTopic(f[4]);
        bean.setMsgId(f[5]);
        if (f[0].equals("Recall")) {
            context.setSuccess(Boolean.parseBoolean(f[6]));
            return context;
        }
        bean.setTags(f[6]);
        bean.setKeys(f[7]);
        bean.setStoreHost(f[8]);
        if (f[0].equals("Pub")) {
            bean.setBodyLength(Integer.parseInt(f[9]));
            context.setCostTime(Integer.parseInt(f[10]));
            bean.setMsgType(MessageType.values()[Integer.parseInt(f[11])]);
            bean.setOffsetMsgId(f[12]);
            context.setSuccess(Boolean.parseBoolean(f[13]));
        } else {
            bean.setMsgType(MessageType.values()[Integer.parseInt(f[9])]);
            bean.setTransactionId(f[10]);
            bean.setTransactionState(LocalTransactionState.valueOf(f[11]));
            bean.setFromTransactionCheck(Boolean.parseBoolean(f[12]));
        }
        return context;
    }

    private static String decodedTrace(String line) {
        List<TraceContext> contexts = TraceDataEncoder.decoderFromTraceDataString(decoded(line));
        TraceContext c = contexts.get(0);
        TraceBean b = c.getTraceBeans().get(0);
        switch (c.getTraceType().name()) {
            case "Pub":
                return joined("Pub", c.getTimeStamp(), c.getRegionId(), c.getGroupName(),
                    b.getTopic(), b.getMsgId(), b.getTags(), b.getKeys(), b.getStoreHost(),
                    b.getBodyLength(), c.getCostTime(), b.getMsgType().ordinal(),
                    b.getOffsetMsgId(), c.isSuccess(), b.getClientHost());
            case "SubBefore":
                return joined("SubBefore", c.getTimeStamp(), c.getRegionId(), c.getGroupName(),
                    c.getRequestId(), b.getMsgId(), b.getRetryTimes(), b.getKeys());
            case "SubAfter":
                return joined("SubAfter", c.getRequestId(), b.getMsgId(), c.getCostTime(),
                    c.isSuccess(), b.getKeys(), c.getContextCode(), c.getTimeStamp(),
                    c.getGroupName());
            case "EndTransaction":
                return joined("EndTransaction", c.getTimeStamp(), c.getRegionId(),
                    c.getGroupName(), b.getTopic(), b.getMsgId(), b.getTags(), b.getKeys(),
                    b.getStoreHost(), b.getMsgType().ordinal(), b.getTransactionId(),
                    b.getTransactionState().name(), b.isFromTransactionCheck());
            default:
                return joined("Recall", c.getTimeStamp(), c.getRegionId(), c.getGroupName(),
                    b.getTopic(), b.getMsgId(), c.isSuccess());
        }
    }

    private static String joined(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t");
            line.append(encoded(String.valueOf(field)));
        }
        return line.toString();
    }

    private static String decoded(String text) {
        StringBuilder result = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            if (text.charAt(i) == '\\') {
                result.append((char) Integer.parseInt(text.substring(i + 2, i + 6), 16));
                i += 5;
            } else {
                result.append(text.charAt(i));
            }
        }
        return result.toString();
    }

    private static String encoded(String text) {
        StringBuilder result = new StringBuilder();
        for (char unit : text.toCharArray()) {
            if (unit >= ' ' && unit <= '~' && unit != '\\') {
                result.append(unit);
            } else {
                result.append(String.format("\\u%04x", (int) unit));
            }
        }
        return result.toString();
    }
}
