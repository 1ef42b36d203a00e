package main

import (
	"bytes"
	"context"
	"runtime"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const pullBatch = 32

func push(given arguments) {
	counting := newTally(given)
	handler := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		failed := false
		for _, message := range messages {
			counting.received(message)
			failed = counting.fails(message) || failed
		}
		switch {
		case !failed:
			return consumer.ConsumeSuccess, nil
		case given.Orderly:
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		return consumer.ConsumeRetryLater, nil
	}
	var listening rocketmq.PushConsumer
	startWithin(startTimeout, func() error {
		made, err := rocketmq.NewPushConsumer(consumerOptions(given)...)
		if err != nil {
			return err
		}
		if err := made.Subscribe(given.Topic, selectorFor(given), handler); err != nil {
			return err
		}
		listening = made
		return made.Start()
	})
	say(event{"event": "ready"})
	<-counting.ended
	finish(counting, listening.Shutdown)
}

// pull asks each queue by itself, all at a time: the client's pull waits at the end of a queue
// until something arrives, so that one empty queue would hold up the others.
func pull(given arguments) {
	counting := newTally(given)
	queues := queuesOf(given)
	puller := startedPuller(given)
	say(event{"event": "ready"})
	for _, queue := range queues {
		if given.QueueID == nil || *given.QueueID == queue.QueueId {
			go pullQueue(puller, queue, given.QueueOffset, counting)
		}
	}
	<-counting.ended
	finish(counting, puller.Shutdown)
}

func pullQueue(
	puller rocketmq.PullConsumer, queue *primitive.MessageQueue, queueOffset int64, counting *tally,
) {
	for {
		select {
		case <-counting.ended:
			return
		default:
		}
		result, err := puller.PullFrom(context.Background(), queue, queueOffset, pullBatch)
		if err != nil {
			say(event{"event": "error", "text": err.Error()})
			time.Sleep(time.Second)
			continue
		}
		queueOffset = result.NextBeginOffset
		for _, message := range result.GetMessageExts() {
			counting.received(message)
		}
	}
}

func litePull(given arguments) {
	counting := newTally(given)
	puller := startedPuller(given)
	say(event{"event": "ready"})
	for {
		select {
		case <-counting.ended:
			finish(counting, puller.Shutdown)
			return
		default:
		}
		polled, err := puller.Poll(context.Background(), 500*time.Millisecond)
		if err != nil {
			continue
		}
		for _, message := range polled.GetMsgList() {
			counting.received(message)
		}
		puller.ACK(context.Background(), polled, consumer.ConsumeSuccess)
	}
}

func startedPuller(given arguments) rocketmq.PullConsumer {
	var started rocketmq.PullConsumer
	startWithin(startTimeout, func() error {
		made, err := rocketmq.NewPullConsumer(consumerOptions(given)...)
		if err != nil {
			return err
		}
		if err := made.Subscribe(given.Topic, selectorFor(given)); err != nil {
			return err
		}
		started = made
		return made.Start()
	})
	return started
}

func queuesOf(given arguments) []*primitive.MessageQueue {
	asking, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(given.namesrv())))
	if err != nil {
		fail(err)
	}
	defer asking.Close()
	var queues []*primitive.MessageQueue
	startWithin(startTimeout, func() error {
		var err error
		queues, err = asking.FetchPublishMessageQueues(context.Background(), given.Topic)
		return err
	})
	return queues
}

// startWithin tries until it works: a consumer of this client refuses a topic without a route,
// and a topic just made has none until its broker has told the NameServer.
func startWithin(limit time.Duration, start func() error) {
	deadline := time.Now().Add(limit)
	for {
		err := start()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			fail(err)
		}
		time.Sleep(retryPause)
	}
}

func finish(counting *tally, shutdown func() error) {
	if err := shutdown(); err != nil {
		fail(err)
	}
	counting.Lock()
	defer counting.Unlock()
	say(event{"event": "done", "count": counting.seen})
}

func consumerOptions(given arguments) []consumer.Option {
	options := []consumer.Option{
		consumer.WithNameServer(given.namesrv()),
		consumer.WithGroupName(given.Group),
		consumer.WithInstance(given.instance()),
		consumer.WithConsumerOrder(given.Orderly),
		consumer.WithPullBatchSize(pullBatch),
	}
	if accessKey, secretKey, known := credentials(); known {
		options = append(options, consumer.WithCredentials(primitive.Credentials{
			AccessKey: accessKey, SecretKey: secretKey,
		}))
	}
	if given.Broadcasting {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if given.MaxReconsumeTimes != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*given.MaxReconsumeTimes))
	}
	where := consumer.ConsumeFromFirstOffset
	if given.From == "last" {
		where = consumer.ConsumeFromLastOffset
	}
	return append(options, consumer.WithConsumeFromWhere(where))
}

func selectorFor(given arguments) consumer.MessageSelector {
	return consumer.MessageSelector{
		Type:       consumer.ExpressionType(given.ExpressionType),
		Expression: given.Expression,
	}
}

// goroutine names the running goroutine by the head of its stack: "goroutine 12 [running]:".
func goroutine() string {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	return string(bytes.TrimSuffix(bytes.SplitN(stack, []byte(" ["), 2)[0], []byte(" ")))
}
