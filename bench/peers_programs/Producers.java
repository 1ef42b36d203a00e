import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Producers as a load uses them. */
final class Producers {
    private static final String GROUP = "load_senders";
    // The first send of many threads on a busy machine loads half of the client's classes.
    private static final int SEND_TIMEOUT_MS = 60_000;

    static DefaultMQProducer made(String namesrv, boolean isTransactional) {
        DefaultMQProducer producer =
            isTransactional ? transactional() : new DefaultMQProducer(GROUP);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        // The broker is to be measured, with bodies of the size that was asked for.
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        return producer;
    }

    private static DefaultMQProducer transactional() {
        TransactionMQProducer producer = new TransactionMQProducer(GROUP + "_transactional");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    private Producers() {
    }
}
