package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	compressedBodyBytes = 8192
	retryPause          = 200 * time.Millisecond
	startTimeout        = 90 * time.Second
)

func send(given arguments) {
	if given.Mode == "compressed" && given.BodyBytes == 0 {
		given.BodyBytes = compressedBodyBytes
	}
	options := []producer.Option{
		producer.WithNameServer(given.namesrv()),
		producer.WithGroupName(given.Group),
		producer.WithInstanceName(given.instance()),
		producer.WithRetry(2),
	}
	if accessKey, secretKey, known := credentials(); known {
		options = append(options, producer.WithCredentials(primitive.Credentials{
			AccessKey: accessKey, SecretKey: secretKey,
		}))
	}
	if given.QueueSelector != nil {
		options = append(options, producer.WithQueueSelector(selectorOf(given.QueueSelector)))
	}
	sender, err := rocketmq.NewProducer(options...)
	if err != nil {
		fail(err)
	}
	if err := sender.Start(); err != nil {
		fail(err)
	}
	count := sendAll(sender, given)
	if given.Mode == "oneway" {
		// Nobody answers one-way messages. This client leaves without reading what the broker
		// answered to its heartbeat, which resets the connection: a broker that has not read the
		// last messages by then never sees them. Whoever has seen them closes our input.
		<-endOfInput()
	}
	if err := sender.Shutdown(); err != nil {
		fail(err)
	}
	say(event{"event": "done", "count": count})
}

func sendAll(sender rocketmq.Producer, given arguments) int {
	switch given.Mode {
	case "batch":
		return sendBatch(sender, given)
	case "async":
		return sendAsync(sender, given)
	}
	sent, ended := 0, endOfInput()
	for number := given.Start; number < given.Start+given.Count; number++ {
		if pause(time.Duration(given.PauseMs)*time.Millisecond, ended) {
			break
		}
		if sendOne(sender, given, number, ended) {
			sent++
		}
	}
	return sent
}

// sendOne sends it, again and again where that is asked for, and says whether it was acknowledged.
func sendOne(sender rocketmq.Producer, given arguments, number int, ended <-chan struct{}) bool {
	for {
		message := messageOf(given, number)
		var result *primitive.SendResult
		var err error
		if given.Mode == "oneway" {
			err = sender.SendOneWay(context.Background(), message)
		} else {
			result, err = sender.SendSync(context.Background(), message)
			if err == nil && result.Status != primitive.SendOK {
				err = fmt.Errorf("status %s", statusName(result.Status))
			}
		}
		if err == nil {
			say(sentEvent(message, result))
			return true
		}
		if !given.RetryForever {
			say(event{"event": "error", "key": message.GetKeys(), "text": err.Error()})
			return false
		}
		if pause(retryPause, ended) {
			return false
		}
	}
}

func sendAsync(sender rocketmq.Producer, given arguments) int {
	var waiting sync.WaitGroup
	var counting sync.Mutex
	sent := 0
	for number := given.Start; number < given.Start+given.Count; number++ {
		message := messageOf(given, number)
		waiting.Add(1)
		answered := func(_ context.Context, result *primitive.SendResult, err error) {
			defer waiting.Done()
			if err != nil {
				say(event{"event": "error", "key": message.GetKeys(), "text": err.Error()})
				return
			}
			counting.Lock()
			sent++
			counting.Unlock()
			say(sentEvent(message, result))
		}
		if err := sender.SendAsync(context.Background(), answered, message); err != nil {
			answered(nil, nil, err)
		}
		time.Sleep(time.Duration(given.PauseMs) * time.Millisecond)
	}
	waiting.Wait()
	return sent
}

// sendBatch sends all messages in one request. Its answer gives the broker's id of each, but only
// the first one's place in the queue: the others are stored right after it. This client gives the
// messages of a batch no ids of its own.
func sendBatch(sender rocketmq.Producer, given arguments) int {
	messages := make([]*primitive.Message, given.Count)
	for index := range messages {
		messages[index] = messageOf(given, given.Start+index)
	}
	result, err := sender.SendSync(context.Background(), messages...)
	if err != nil {
		say(event{"event": "error", "text": err.Error()})
		return 0
	}
	offsetIDs := strings.Split(result.OffsetMsgID, ",")
	for index, message := range messages {
		line := sentEvent(message, result)
		delete(line, "message_id")
		line["queue_offset"] = result.QueueOffset + int64(index)
		if len(offsetIDs) == len(messages) {
			line["offset_message_id"] = offsetIDs[index]
		}
		say(line)
	}
	return len(messages)
}

func messageOf(given arguments, number int) *primitive.Message {
	body := fmt.Sprintf("body-%d", number)
	if missing := given.BodyBytes - len(body); missing > 0 {
		body += strings.Repeat(".", missing)
	}
	message := primitive.NewMessage(given.Topic, []byte(body))
	message.WithKeys([]string{fmt.Sprintf("k-%d", number)})
	if tag := tagOf(given, number); tag != "" {
		message.WithTag(tag)
	}
	if given.DelayLevel > 0 {
		message.WithDelayTimeLevel(given.DelayLevel)
	}
	for name, value := range given.Properties {
		message.WithProperty(name, fmt.Sprint(value))
	}
	if given.QueueSelector == "hash" {
		message.WithShardingKey(message.GetKeys())
	}
	return message
}

func tagOf(given arguments, number int) string {
	if len(given.Tags) > 0 {
		return given.Tags[(number-given.Start)%len(given.Tags)]
	}
	return given.Tag
}

func sentEvent(message *primitive.Message, result *primitive.SendResult) event {
	line := event{"event": "sent", "key": message.GetKeys(), "status": "ONEWAY"}
	if result == nil {
		return line
	}
	line["status"] = statusName(result.Status)
	line["message_id"] = result.MsgID
	line["offset_message_id"] = result.OffsetMsgID
	line["queue_id"] = result.MessageQueue.QueueId
	line["queue_offset"] = result.QueueOffset
	line["broker"] = result.MessageQueue.BrokerName
	return line
}

func statusName(status primitive.SendStatus) string {
	names := map[primitive.SendStatus]string{
		primitive.SendOK:                "SEND_OK",
		primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
		primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
		primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
	}
	if name, known := names[status]; known {
		return name
	}
	return "UNKNOWN"
}

// oneQueue sends everything to the queue of that number on the first broker by name.
type oneQueue struct{ queueID int }

func (chosen oneQueue) Select(
	_ *primitive.Message, queues []*primitive.MessageQueue, _ string,
) *primitive.MessageQueue {
	var first *primitive.MessageQueue
	for _, queue := range queues {
		if queue.QueueId == chosen.queueID && (first == nil || queue.BrokerName < first.BrokerName) {
			first = queue
		}
	}
	return first
}

func selectorOf(wanted any) producer.QueueSelector {
	if number, isNumber := wanted.(float64); isNumber {
		return oneQueue{int(number)}
	}
	return producer.NewHashQueueSelector()
}
