import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many mqadmin commands in one JVM. A line of standard input is one command, its words separated by
 * tabs; the answer is a line with a number of bytes and then that many bytes: all it printed.
 *
 * <p>Words beginning with '!' are ours: they hold a producer or a consumer online until the end.
 */
public class AdminShell {
    private static final int CONSUME_TIMEOUT_S = 40;
    /** Each start-up adds every command anew, and a used command keeps its old client. */
    private static class OneCommand extends MQAdminStartup {
        static void run(String[] words) {
            SUB_COMMANDS.clear();
            MQAdminStartup.main(words);
        }
    }

    private static final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private static final List<DefaultMQProducer> producers = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] printed = printedBy(line.split("\t", -1));
            answers.print(printed.length + "\n");
            answers.write(printed);
            answers.flush();
        }
        System.setOut(System.err);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producers.forEach(DefaultMQProducer::shutdown);
        System.exit(0);
    }

    private static byte[] printedBy(String[] words) throws Exception {
        PrintStream errors = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        try {
            run(words);
        } catch (Exception problem) {
            problem.printStackTrace(capture);
        } finally {
            System.setOut(errors);
            System.setErr(errors);
        }
        synchronized (printed) {
            return printed.toByteArray();
        }
    }

    private static void run(String[] words) throws Exception {
        switch (words[0]) {
            case "!producer":
                holdProducer(words[1], words[2], words[3], Arrays.copyOfRange(words, 4, words.length));
                return;
            case "!consumer":
                holdConsumer(words[1], words[2], words[3], Integer.parseInt(words[4]));
                return;
            case "!commit":
                consumers.forEach(one -> one.getDefaultMQPushConsumerImpl().persistConsumerOffset());
                return;
            default:
                OneCommand.run(words);
        }
    }

    private static void holdProducer(String servers, String group, String topic, String[] keys)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(servers);
        producer.setInstanceName(group);
        producer.setVipChannelEnabled(false);
        producer.start();
        producers.add(producer);
        for (String key : keys) {
            byte[] body = ("body-" + key).getBytes(StandardCharsets.UTF_8);
            SendResult sent = producer.send(new Message(topic, "TagA", key, body), 10_000);
            System.out.printf("%s\t%s\t%s\t%s\t%d\t%d\t%s%n", key, sent.getMsgId(),
                sent.getOffsetMsgId(), sent.getMessageQueue().getBrokerName(),
                sent.getMessageQueue().getQueueId(), sent.getQueueOffset(), sent.getSendStatus());
        }
        // The next heartbeat would come after 30 s; only it tells the brokers of the group.
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
    }

    private static void holdConsumer(String servers, String group, String topic, int count)
        throws Exception {
        CountDownLatch consumed = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName(group);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.add(consumer);
        if (!consumed.await(CONSUME_TIMEOUT_S, TimeUnit.SECONDS)) {
            System.out.printf("%d of %d messages did not arrive%n", consumed.getCount(), count);
        }
        System.out.printf("%s%n", consumer.buildMQClientId());
    }
}
