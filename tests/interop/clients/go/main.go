// Driver of the Go client: one command with JSON arguments in, one JSON line per event out.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const version = "2.1.2"

type arguments struct {
	Namesrv string `json:"namesrv"`
	Group   string `json:"group"`
	Topic   string `json:"topic"`

	Mode          string         `json:"mode"`
	Count         int            `json:"count"`
	Start         int            `json:"start"`
	Tag           string         `json:"tag"`
	Tags          []string       `json:"tags"`
	Properties    map[string]any `json:"properties"`
	QueueSelector any            `json:"queue_selector"`
	BodyBytes     int            `json:"body_bytes"`
	PauseMs       int            `json:"pause_ms"`
	RetryForever  bool           `json:"retry_forever"`
	DelayLevel    int            `json:"delay_level"`

	Expression     string  `json:"expression"`
	ExpressionType string  `json:"expression_type"`
	Orderly        bool    `json:"orderly"`
	Broadcasting   bool    `json:"broadcasting"`
	From           string  `json:"from"`
	Instance       string  `json:"instance"`
	QueueID        *int    `json:"queue_id"`
	QueueOffset    int64   `json:"queue_offset"`
	TimeoutS       float64 `json:"timeout_s"`

	// How often each key fails before it is consumed.
	FailTimes         map[string]int `json:"fail_times"`
	MaxReconsumeTimes *int32         `json:"max_reconsume_times"`
}

type event map[string]any

var output = struct {
	sync.Mutex
	*json.Encoder
}{Encoder: json.NewEncoder(os.Stdout)}

// credentials are those that the environment names, if it does.
func credentials() (accessKey, secretKey string, known bool) {
	accessKey, known = os.LookupEnv("DRIVER_ACCESS_KEY")
	return accessKey, os.Getenv("DRIVER_SECRET_KEY"), known
}

func main() {
	rlog.SetLogLevel("error")
	commands := map[string]func(arguments){
		"capabilities": capabilities,
		"send":         send,
		"push":         push,
		"pull":         pull,
		"litepull":     litePull,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fail(fmt.Errorf("the first argument must be a command, got %q", os.Args[1:]))
	}
	given := arguments{Expression: "*", ExpressionType: "TAG", From: "first", TimeoutS: 60}
	if len(os.Args) > 2 {
		if err := json.Unmarshal([]byte(os.Args[2]), &given); err != nil {
			fail(err)
		}
	}
	commands[os.Args[1]](given)
}

func capabilities(arguments) {
	say(event{
		"event":   "capabilities",
		"client":  "rocketmq-client-go",
		"version": version,
		"commands": event{
			"send":     []string{"sync", "async", "oneway", "batch", "compressed", "queue_selector"},
			"push":     []string{"concurrently", "orderly", "broadcasting", "TAG", "SQL92"},
			"pull":     []string{},
			"litepull": []string{},
		},
	})
}

func say(line event) {
	output.Lock()
	defer output.Unlock()
	if err := output.Encode(line); err != nil {
		os.Exit(3)
	}
}

func fail(problem error) {
	say(event{"event": "error", "text": problem.Error()})
	os.Exit(2)
}

func (given arguments) namesrv() primitive.NamesrvAddr {
	return strings.Split(given.Namesrv, ";")
}

// instance is unique unless named: two clients of one instance would be one client to a broker.
func (given arguments) instance() string {
	if given.Instance != "" {
		return given.Instance
	}
	return fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
}

// endOfInput closes once whoever started this process has closed its input.
func endOfInput() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	return ended
}

// pause waits unless the end comes first, and says whether it came.
func pause(length time.Duration, ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	case <-time.After(length):
		return false
	}
}

// tally counts received messages; `ended` closes at the wanted count, the deadline or end of input.
type tally struct {
	sync.Mutex
	wanted, seen int
	failuresLeft map[string]int
	ended        chan struct{}
	once         sync.Once
}

func newTally(given arguments) *tally {
	counting := &tally{wanted: given.Count, failuresLeft: given.FailTimes, ended: make(chan struct{})}
	go func() {
		<-endOfInput()
		counting.end()
	}()
	time.AfterFunc(time.Duration(given.TimeoutS*float64(time.Second)), counting.end)
	return counting
}

func (counting *tally) end() {
	counting.once.Do(func() { close(counting.ended) })
}

func (counting *tally) received(message *primitive.MessageExt) {
	counting.Lock()
	defer counting.Unlock()
	counting.seen++
	say(receivedEvent(message))
	if counting.seen == counting.wanted {
		counting.end()
	}
}

// fails says whether this delivery of the message is one that is to fail.
func (counting *tally) fails(message *primitive.MessageExt) bool {
	counting.Lock()
	defer counting.Unlock()
	left := counting.failuresLeft[message.GetKeys()]
	if left > 0 {
		counting.failuresLeft[message.GetKeys()] = left - 1
	}
	return left > 0
}

func receivedEvent(message *primitive.MessageExt) event {
	line := event{
		"event":             "received",
		"key":               message.GetKeys(),
		"body":              string(message.Body),
		"tag":               message.GetTags(),
		"topic":             message.Topic,
		"queue_offset":      message.QueueOffset,
		"reconsume_times":   message.ReconsumeTimes,
		"thread":            goroutine(),
		"message_id":        message.MsgId,
		"offset_message_id": message.OffsetMsgId,
		"properties":        message.GetProperties(),
	}
	if message.Queue != nil {
		line["queue_id"] = message.Queue.QueueId
		line["broker"] = message.Queue.BrokerName
	}
	return line
}
