import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends one message after the other with the stock settings, and says how each ended.
 *
 * Arguments: NameServers, producer group, topic. Each line is "ok" or "no", the milliseconds of the
 * epoch when the send began and when it ended, and the number that is the message's body; behind
 * "no" the error's first line. Ends with its standard input.
 */
public final class FailoverSender {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments[1]);
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        Thread end = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Until the test closes it.
                }
            } catch (java.io.IOException gone) {
                // The test has ended.
            }
            Runtime.getRuntime().halt(0);
        });
        end.setDaemon(true);
        end.start();
        AtomicLong number = new AtomicLong();
        while (true) {
            long own = number.getAndIncrement();
            byte[] body = Long.toString(own).getBytes("UTF-8");
            long begun = System.currentTimeMillis();
            String word = "no", why = "";
            try {
                SendResult result = producer.send(new Message(arguments[2], body));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    word = "ok";
                } else {
                    why = result.getSendStatus().name();
                }
            } catch (Exception error) {
                why = String.valueOf(error.getMessage()).split("\n")[0];
            }
            long ended = System.currentTimeMillis();
            System.out.println(word + " " + begun + " " + ended + " " + own + " " + why);
            System.out.flush();
            Thread.sleep(20);
        }
    }
}
