'use strict';

// Driver of ali-ons: one command with JSON arguments in, one JSON line per event out.

const fs = require('fs');
const { Consumer, Message, Producer } = require('ali-ons');
const { version } = require('ali-ons/package.json');

const SEND_MODES = [ 'sync', 'async', 'compressed' ];
const COMPRESSED_BODY_BYTES = 8192;
const RETRY_PAUSE_MS = 200;
const CLOSE_TIMEOUT_MS = 10000;
// By default 3 s: on a busy machine a send would be tried again, and be stored twice.
const CALL_TIMEOUT_MS = 20000;
const TOPIC_NOT_EXIST = 17;

// The client logs to the console by default, and standard output is for events only.
const logger = {
  debug() {},
  info() {},
  warn: (...words) => console.error(...words),
  error: (...words) => console.error(...words),
};

// `httpclient` must be there, but is used only to look a NameServer up by URL. The intervals are
// shorter than the defaults: this client ignores the broker's notices of a changed group.
function clientOptions(given) {
  return {
    httpclient: {},
    nameSrv: given.namesrv.split(';'),
    accessKey: process.env.DRIVER_ACCESS_KEY || 'unused',
    secretKey: process.env.DRIVER_SECRET_KEY || 'unused',
    logger,
    instanceName: given.instance || `${process.pid}-${Date.now()}`,
    pollNameServerInteval: 1000,
    heartbeatBrokerInterval: 1000,
    rebalanceInterval: 1000,
    persistConsumerOffsetInterval: 1000,
  };
}

// Set once the parent process has closed our input.
let inputEnded = false;
process.stdin.on('end', () => { inputEnded = true; }).resume();

function say(event) {
  fs.writeSync(1, JSON.stringify(event) + '\n');
}

function sleep(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

function capabilities() {
  say({
    event: 'capabilities',
    client: 'ali-ons',
    version,
    commands: {
      send: SEND_MODES,
      push: [ 'concurrently', 'broadcasting', 'TAG', 'SQL92' ],
    },
  });
}

async function send(given) {
  if (!SEND_MODES.includes(given.mode)) throw new Error(`no API to send ${given.mode}`);
  const producer = new Producer({
    ...clientOptions(given), producerGroup: given.group, sendMsgTimeout: CALL_TIMEOUT_MS,
  });
  producer.on('error', error => logger.error(error));
  await producer.ready();
  await makeTopic(producer, given.topic);
  const numbers = Array.from({ length: given.count }, (_, index) => given.start + index);
  const sent = given.mode === 'async'
    ? await Promise.all(numbers.map(number => sendOne(producer, given, number)))
    : await sendInTurn(producer, given, numbers);
  await producer.close();
  say({ event: 'done', count: sent.filter(Boolean).length });
}

// This client gives up on a topic without a route instead of sending it to where `TBW102` is, so
// that the topic must be there before: made on each broker, as its own code for that does.
async function makeTopic(producer, topic) {
  const client = producer._mqClient;
  if (await hasRoute(client, topic)) return;
  const route = await client.getDefaultTopicRouteInfoFromNameServer('TBW102', CALL_TIMEOUT_MS);
  const topicConfig = {
    topicName: topic, readQueueNums: 4, writeQueueNums: 4, perm: 6,
    topicFilterType: 'SINGLE_TAG', topicSysFlag: 0, order: false,
  };
  for (const broker of route.brokerDatas) {
    await client.createTopic(broker.brokerAddrs[0], 'TBW102', topicConfig, CALL_TIMEOUT_MS);
  }
  while (!await hasRoute(client, topic)) await sleep(RETRY_PAUSE_MS);
}

async function hasRoute(client, topic) {
  try {
    return Boolean(await client.getTopicRouteInfoFromNameServer(topic, CALL_TIMEOUT_MS));
  } catch (error) {
    if (error.code !== TOPIC_NOT_EXIST) throw error;
    return false;
  }
}

async function sendInTurn(producer, given, numbers) {
  const sent = [];
  for (const number of numbers) {
    await sleep(given.pause_ms || 0);
    if (inputEnded) break;
    sent.push(await sendOne(producer, given, number));
  }
  return sent;
}

async function sendOne(producer, given, number) {
  for (;;) {
    const message = messageOf(given, number);
    try {
      const result = await producer.send(message);
      if (result.sendStatus !== 'SEND_OK') throw new Error(`status ${result.sendStatus}`);
      say(sentEvent(message, result));
      return true;
    } catch (error) {
      if (!given.retry_forever) {
        say({ event: 'error', key: message.keys, text: error.message });
        return false;
      }
      await sleep(RETRY_PAUSE_MS);
      if (inputEnded) return false;
    }
  }
}

function messageOf(given, number) {
  const bytes = given.body_bytes || (given.mode === 'compressed' ? COMPRESSED_BODY_BYTES : 0);
  const message = new Message(given.topic, `body-${number}`.padEnd(bytes, '.'));
  message.keys = [ `k-${number}` ];
  const tags = given.tags || (given.tag ? [ given.tag ] : []);
  if (tags.length) {
    message.tags = tags[(number - given.start) % tags.length];
  } else {
    // Left alone, the property would be sent as the text `null`.
    delete message.properties.TAGS;
  }
  if (given.delay_level) message.delayTimeLevel = given.delay_level;
  for (const [ name, value ] of Object.entries(given.properties || {})) {
    message.properties[name] = String(value);
  }
  return message;
}

// The one id this client gives is the broker's, made of its address and the physical offset.
function sentEvent(message, result) {
  return {
    event: 'sent',
    key: message.keys,
    offset_message_id: result.msgId,
    queue_id: Number(result.messageQueue.queueId),
    queue_offset: result.queueOffset,
    broker: result.messageQueue.brokerName,
    status: result.sendStatus,
  };
}

async function push(given) {
  const consumer = new Consumer({
    ...clientOptions(given),
    consumerGroup: given.group,
    isBroadcast: Boolean(given.broadcasting),
    consumeFromWhere: given.from === 'last'
      ? 'CONSUME_FROM_LAST_OFFSET' : 'CONSUME_FROM_FIRST_OFFSET',
    ...(given.max_reconsume_times && { maxReconsumeTimes: given.max_reconsume_times }),
  });
  consumer.on('error', error => logger.error(error));
  let seen = 0;
  // How often each key fails before it is consumed.
  const failuresLeft = { ...given.fail_times };
  const ended = new Promise(resolve => {
    setTimeout(resolve, given.timeout_s * 1000);
    process.stdin.on('end', resolve);
    consumer.subscribe(given.topic, expressionOf(given), async (message, queue) => {
      say(receivedEvent(message, queue));
      if (++seen === given.count) resolve();
      // `Consumer.ACTION_RETRY` would do for the first failure only: what handlers return of a
      // retried message is forgotten.
      if (failuresLeft[message.keys]-- > 0) throw new Error('to be tried again');
    });
  });
  await consumer.ready();
  say({ event: 'ready' });
  await ended;
  // The loop acknowledges the last message only after its handler has returned.
  await sleep(0);
  await Promise.race([ consumer.close(), sleep(CLOSE_TIMEOUT_MS) ]);
  say({ event: 'done', count: seen });
}

function expressionOf(given) {
  const expression = given.expression || '*';
  if (given.expression_type !== 'SQL92') return expression;
  return { expressionType: 'SQL92', subString: expression };
}

function receivedEvent(message, queue) {
  return {
    event: 'received',
    key: message.keys,
    body: message.body.toString(),
    tag: message.tags,
    topic: message.topic,
    queue_id: message.queueId,
    queue_offset: Number(message.queueOffset),
    // The client's own handler of retried messages passes no queue on.
    broker: queue && queue.brokerName,
    reconsume_times: message.reconsumeTimes,
    thread: 'event loop',
    message_id: message.msgId,
    properties: message.properties,
  };
}

async function main() {
  const [ command, text ] = process.argv.slice(2);
  const commands = { capabilities, send, push };
  if (!Object.hasOwn(commands, command)) throw new Error(`unknown command ${command}`);
  await commands[command](text ? JSON.parse(text) : {});
}

main().then(() => process.exit(0), error => {
  say({ event: 'error', text: error.stack });
  process.exit(2);
});
