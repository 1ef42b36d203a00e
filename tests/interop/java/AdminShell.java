import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.monitor.DefaultMonitorListener;
import org.apache.rocketmq.tools.monitor.MonitorConfig;
import org.apache.rocketmq.tools.monitor.MonitorService;
import org.apache.rocketmq.tools.monitor.UndoneMsgs;

/**
 * Many mqadmin commands in one JVM. A line of standard input is one command, its words separated by
 * tabs; the answer is a line with a number of bytes and then that many bytes: all it printed.
 *
 * <p>Words beginning with '!' are ours: they name the commands there are, hold a producer or a
 * consumer online until the end, or run a command that would never end by itself.
 */
public class AdminShell {
    private static final int CONSUME_TIMEOUT_S = 40;
    /** Each start-up adds every command anew, and a used command keeps its old client. */
    private static class OneCommand extends MQAdminStartup {
        static void run(String[] words) {
            SUB_COMMANDS.clear();
            MQAdminStartup.main(words);
        }

        static void printNames() {
            SUB_COMMANDS.clear();
            initCommand();
            SUB_COMMANDS.forEach(command -> System.out.printf("%s%n", command.commandName()));
        }
    }

    /** Prints what a monitor would log. */
    private static class Report extends DefaultMonitorListener {
        @Override
        public void reportUndoneMsgs(UndoneMsgs undone) {
            System.out.printf("undone\t%s\t%s\t%d%n", undone.getConsumerGroup(),
                undone.getTopic(), undone.getUndoneMsgsTotal());
        }

        @Override
        public void reportConsumerRunningInfo(TreeMap<String, ConsumerRunningInfo> clients) {
            clients.forEach((client, info) -> System.out.printf("running\t%s\t%d%n", client,
                info.getMqTable().size()));
        }
    }

    private static final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private static final List<DefaultMQProducer> producers = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        hastenShutdowns(Thread.currentThread());
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
            case "!commands":
                OneCommand.printNames();
                return;
            case "!until":
                runUntilPrinted(
                    Integer.parseInt(words[1]), Arrays.copyOfRange(words, 2, words.length));
                return;
            case "!trace":
                trace(words[1], words[2], words[3], words[4]);
                return;
            case "!monitor":
                monitorOnce(words[1]);
                return;
            case "!commit":
                consumers.forEach(one -> one.getDefaultMQPushConsumerImpl().persistConsumerOffset());
                return;
            default:
                OneCommand.run(words);
        }
    }

    /**
     * A client that shuts down waits up to 3 s for a thread that sleeps on an empty queue. Waking it
     * up saves that time for each command; a thread of a client that lives on goes back to sleep.
     */
    private static void hastenShutdowns(Thread main) {
        Thread watcher = new Thread(() -> {
            while (true) {
                boolean shuttingDown = Arrays.stream(main.getStackTrace())
                    .anyMatch(frame -> frame.getClassName().endsWith(".NettyRemotingClient")
                        && frame.getMethodName().equals("shutdown"));
                if (shuttingDown) {
                    Thread.getAllStackTraces().keySet().stream()
                        .filter(thread -> thread.getName().startsWith("NettyEventExecutor"))
                        .forEach(Thread::interrupt);
                }
                try {
                    Thread.sleep(25);
                } catch (InterruptedException stopped) {
                    return;
                }
            }
        });
        watcher.setDaemon(true);
        watcher.start();
    }

    /** Runs a command that never ends until it has printed so many lines, then interrupts it. */
    private static void runUntilPrinted(int lineCount, String[] words) throws Exception {
        PrintStream outer = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        Thread command = new Thread(() -> OneCommand.run(words));
        command.start();
        long deadline = System.currentTimeMillis() + CONSUME_TIMEOUT_S * 1000L;
        while (command.isAlive() && System.currentTimeMillis() < deadline
            && printed.toString(StandardCharsets.UTF_8).lines().count() < lineCount) {
            Thread.sleep(20);
        }
        command.interrupt();
        command.join(CONSUME_TIMEOUT_S * 1000L);
        System.setOut(outer);
        outer.print(printed.toString(StandardCharsets.UTF_8));
    }

    /** One message sent and consumed by clients that write traces; they flush them as they end. */
    private static void trace(String servers, String group, String topic, String key)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, true, null);
        producer.setNamesrvAddr(servers);
        producer.setInstanceName(group);
        producer.start();
        SendResult sent = producer.send(
            new Message(topic, "TagA", key, key.getBytes(StandardCharsets.UTF_8)), 10_000);
        producer.shutdown();
        CountDownLatch consumed = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName(group + "-reader");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumed.await(CONSUME_TIMEOUT_S, TimeUnit.SECONDS);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.shutdown();
        System.out.printf("%s%n", sent.getMsgId());
    }

    /** One round of what startMonitoring does every minute. */
    private static void monitorOnce(String servers) throws Exception {
        MonitorConfig config = new MonitorConfig();
        config.setNamesrvAddr(servers);
        MonitorService service = new MonitorService(config, new Report(), null);
        service.start();
        try {
            service.doMonitorWork();
        } finally {
            service.shutdown();
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
