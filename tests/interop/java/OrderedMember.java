import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Apache's Java client as an ordered member of a group, with the intervals that it has by itself.
 *
 * <p>A line of standard output for each message: its queue, its place, and when its handler began
 * and ended, in milliseconds of the system's clock.
 */
public class OrderedMember {
    public static void main(String[] line) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(line[1]);
        consumer.setNamesrvAddr(line[0]);
        consumer.setInstanceName(line[3]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(line[2], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            long begun = System.currentTimeMillis();
            try {
                Thread.sleep(50);
            } catch (InterruptedException problem) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            System.out.println("handled " + messages.get(0).getQueueId() + " " + messages.get(0).getQueueOffset()
                + " " + begun + " " + System.currentTimeMillis());
            System.out.flush();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        // The parent closes our input to end this process.
        while (System.in.read() >= 0) {
        }
        Runtime.getRuntime().halt(0);
    }
}
