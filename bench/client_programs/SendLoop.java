import java.lang.management.ManagementFactory;
import java.util.Arrays;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Sends with Apache's Java client, each message answered before the next; prints its figures as JSON. */
public class SendLoop {
    private static final int SEND_TIMEOUT_MS = 10_000;

    public static void main(String[] arguments) {
        try {
            measure(arguments);
        } catch (Exception problem) {
            problem.printStackTrace();
            // The client's threads would keep the process alive.
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void measure(String[] arguments) throws Exception {
        String topic = arguments[1];
        byte[] body = new byte[Integer.parseInt(arguments[2])];
        Arrays.fill(body, (byte) 'b');
        int warmUpCount = Integer.parseInt(arguments[3]);
        int count = Integer.parseInt(arguments[4]);
        DefaultMQProducer producer = new DefaultMQProducer("java_senders");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        send(producer, topic, body, warmUpCount);
        long wall = System.nanoTime();
        long cpu = cpuNanos();
        send(producer, topic, body, count);
        double wallSeconds = (System.nanoTime() - wall) / 1e9;
        double cpuSeconds = (cpuNanos() - cpu) / 1e9;
        System.out.printf(
            "{\"wall_s\": %.6f, \"cpu_s\": %.6f, \"record_count\": %d}%n",
            wallSeconds, cpuSeconds, count);
        System.out.flush();
    }

    private static void send(DefaultMQProducer producer, String topic, byte[] body, int count)
        throws Exception {
        for (int sent = 0; sent < count; sent++) {
            SendStatus status = producer.send(new Message(topic, body)).getSendStatus();
            if (status != SendStatus.SEND_OK) {
                throw new IllegalStateException("a message was answered by " + status);
            }
        }
    }

    private static long cpuNanos() {
        var system = ManagementFactory.getOperatingSystemMXBean();
        return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime();
    }
}
