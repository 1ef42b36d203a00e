import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.store.pop.AckMsg;
import org.apache.rocketmq.store.pop.BatchAckMsg;
import org.apache.rocketmq.store.pop.PopCheckPoint;

/** The records of popped messages as Apache's own classes write them, and read ours. */
public class PopRecords {
    public static void main(String[] line) {
        PopCheckPoint checkpoint = new PopCheckPoint();
        checkpoint.setBitMap(0);
        checkpoint.setNum((byte) 3);
        checkpoint.setPopTime(1760000000000L);
        checkpoint.setInvisibleTime(60000);
        checkpoint.setStartOffset(100);
        checkpoint.setCId("g1");
        checkpoint.setTopic("orders");
        checkpoint.setQueueId(2);
        checkpoint.setBrokerName("broker-a");
        for (int distance : new int[] {0, 1, 3}) {
            checkpoint.addDiff(distance);
        }
        System.out.println("ck " + JSON.toJSONString(checkpoint));
        AckMsg ack = named(new AckMsg());
        ack.setAckOffset(101);
        System.out.println("ack " + JSON.toJSONString(ack));
        BatchAckMsg batch = (BatchAckMsg) named(new BatchAckMsg());
        batch.setAckOffset(-1);
        batch.getAckOffsetList().add(100L);
        batch.getAckOffsetList().add(103L);
        System.out.println("bAck " + JSON.toJSONString(batch));
        PopCheckPoint read = JSON.parseObject(line[0].getBytes(StandardCharsets.UTF_8), PopCheckPoint.class);
        AckMsg acked = JSON.parseObject(line[1].getBytes(StandardCharsets.UTF_8), AckMsg.class);
        BatchAckMsg both = JSON.parseObject(line[2].getBytes(StandardCharsets.UTF_8), BatchAckMsg.class);
        System.out.println("read " + read.getCId() + " " + read.getTopic() + " " + read.getQueueId() + " "
            + read.getStartOffset() + " " + read.getReviveTime() + " " + read.getQueueOffsetDiff() + " "
            + read.getNum() + " " + read.getBrokerName() + " " + acked.getAckOffset() + " "
            + both.getAckOffsetList());
        System.out.flush();
    }

    private static AckMsg named(AckMsg ack) {
        ack.setConsumerGroup("g1");
        ack.setTopic("orders");
        ack.setQueueId(2);
        ack.setStartOffset(100);
        ack.setPopTime(1760000000000L);
        ack.setBrokerName("broker-a");
        return ack;
    }
}
