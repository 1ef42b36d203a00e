import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Apache's push consumer, whose broker says how it consumes and which queues it has.
 *
 * <p>A line of standard output for each message: its key, how often it failed before, and whether
 * it was popped. A message whose key begins with {@code fail} fails the first time.
 */
public class PopMember {
    public static void main(String[] line) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        System.setProperty("rocketmq.client.rebalance.minInterval", "500");
        ConcurrentHashMap.KeySetView<String, Boolean> seen = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(line[1]);
        consumer.setNamesrvAddr(line[0]);
        consumer.setInstanceName(line[3]);
        consumer.setClientRebalance(false);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPollNameServerInterval(1000);
        consumer.setMqClientApiTimeout(20_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(line[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                System.out.println("handled " + message.getKeys() + " " + message.getReconsumeTimes() + " "
                    + (message.getProperty("POP_CK") != null ? "popped" : "pulled"));
                System.out.flush();
                if (message.getKeys().startsWith("fail") && seen.add(message.getKeys())) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        // The parent closes our input to end this process.
        while (System.in.read() >= 0) {
        }
        consumer.shutdown();
        Runtime.getRuntime().halt(0);
    }
}
