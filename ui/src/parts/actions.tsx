// The changes of topics, groups, messages, brokers: their forms, and the paths of their plans.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { may, segment } from '../data/api';
import { type Key, t } from '../texts';
import { Change, ChangeButton, Check, Field, type Values } from './plan';

const text = (value: Values[string] | undefined): string | undefined => (value ? String(value) : undefined);
const KINDS = ['NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'MIXED'];
const PLACES = ['earliest', 'latest', 'time', 'offset'];

interface Done {
  onDone?: () => void;
}

export function CreateTopic({ onDone }: Done) {
  return (
    <ChangeTarget
      label="create_topic"
      nameLabel="col_topic"
      path={(name) => `/topics/${segment(name)}/create:plan`}
      start={{ queues: '8', kind: 'NORMAL', order: false }}
      form={(values, set) => (
        <>
          <Field label="queues_per_broker" name="queues" values={values} set={set} isNumber required />
          <Field label="message_type" name="kind" values={values} set={set} options={KINDS} />
          <Check label="col_order" name="order" values={values} set={set} />
        </>
      )}
      bodyOf={(values) => ({ queues: Number(values.queues), kind: values.kind, order: values.order === true })}
      onDone={onDone}
    />
  );
}

export function CreateGroup({ onDone }: Done) {
  return (
    <ChangeTarget
      label="create_group"
      nameLabel="col_group"
      path={(name) => `/groups/${segment(name)}/settings:plan`}
      start={{ retries: '16', order: false }}
      form={(values, set) => (
        <>
          <Field label="retries" name="retries" values={values} set={set} isNumber required />
          <Check label="orderly" name="order" values={values} set={set} />
        </>
      )}
      bodyOf={(values) => ({ retry_count_max: Number(values.retries), consume_message_orderly: values.order === true })}
      onDone={onDone}
    />
  );
}

// A change whose target is named in its own form.

interface TargetProps {
  label: Key;
  nameLabel: Key;
  path: (name: string) => string;
  start: Values;
  form: (values: Values, set: (changes: Values) => void) => ComponentChildren;
  bodyOf: (values: Values) => unknown;
  onDone?: () => void;
}

function ChangeTarget(props: TargetProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" disabled={!may('operator')} title={may('operator') ? undefined : t('needs_role', { role: 'operator' })} onClick={() => setOpen(true)}>
        {t(props.label)}
      </button>
      {isOpen && (
        <Change
          title={t(props.label)}
          path={(values) => props.path(String(values.name ?? ''))}
          start={props.start}
          form={(values, set) => (
            <>
              <Field label={props.nameLabel} name="name" values={values} set={set} required />
              {props.form(values, set)}
            </>
          )}
          bodyOf={props.bodyOf}
          onDone={props.onDone}
          onClose={() => setOpen(false)}
        />
      )}
    </>
  );
}

export function TopicActions({ topic, queues, onDone }: { topic: string; queues: number } & Done) {
  const base = `/topics/${segment(topic)}`;
  const count = (values: Values) => ({ queues: Number(values.queues) });
  return (
    <>
      <ChangeButton
        label="send"
        title={t('send_to', { topic })}
        path={`${base}/send:plan`}
        start={{ body: '' }}
        form={(values, set) => (
          <>
            <Field label="body" name="body" values={values} set={set} rows={6} />
            <Field label="tags" name="tags" values={values} set={set} />
            <Field label="keys_label" name="keys" values={values} set={set} hint={t('keys_hint')} />
          </>
        )}
        bodyOf={(values) => ({ body: String(values.body ?? ''), tags: text(values.tags), keys: String(values.keys ?? '').split(/\s+/).filter(Boolean) })}
        onDone={onDone}
      />
      <ChangeButton
        label="grow"
        title={t('grow_topic', { topic })}
        path={`${base}/grow:plan`}
        start={{ queues: String(queues) }}
        form={(values, set) => <Field label="queues_per_broker" name="queues" values={values} set={set} isNumber required />}
        bodyOf={count}
        onDone={onDone}
      />
      <ChangeButton
        label="shrink"
        title={t('shrink_topic', { topic })}
        path={`${base}/shrink:plan`}
        start={{ queues: String(queues) }}
        form={(values, set) => <Field label="queues_per_broker" name="queues" values={values} set={set} isNumber required />}
        bodyOf={count}
        onDone={onDone}
      />
      <ChangeButton label="remove" title={t('delete_topic', { topic })} path={`${base}/delete:plan`} bodyOf={() => ({})} danger role="admin" onDone={onDone} />
    </>
  );
}

export function GroupActions({ group, topics, onDone }: { group: string; topics: string[] } & Done) {
  const base = `/groups/${segment(group)}`;
  return (
    <>
      <ChangeButton
        label="seek"
        title={t('seek_group', { group })}
        path={`${base}/seek:plan`}
        start={{ to: 'earliest', topic: topics.length === 1 ? topics[0]! : '' }}
        form={(values, set) => (
          <>
            <Field label="seek_to" name="to" values={values} set={set} options={PLACES} />
            {values.to === 'time' && <Field label="col_time" name="time" values={values} set={set} required hint={t('time_hint')} />}
            {values.to === 'offset' && <Field label="offset" name="value" values={values} set={set} isNumber required />}
            <Field label="col_topic" name="topic" values={values} set={set} options={['', ...topics]} />
            <Field label="col_queue" name="queue" values={values} set={set} hint={t('queue_hint')} />
          </>
        )}
        bodyOf={seekBody}
        onDone={onDone}
      />
      <ChangeButton
        label="clone"
        title={t('clone_group', { group })}
        path={`${base}/clone:plan`}
        form={(values, set) => <Field label="clone_to" name="destination" values={values} set={set} required />}
        bodyOf={(values) => ({ destination: String(values.destination ?? '') })}
        onDone={onDone}
      />
      <ChangeButton label="remove" title={t('delete_group', { group })} path={`${base}/delete:plan`} bodyOf={() => ({})} danger role="admin" onDone={onDone} />
    </>
  );
}

export function seekBody(values: Values): unknown {
  const [broker, queue] = String(values.queue ?? '').split(':');
  const value = values.to === 'time' ? String(new Date(String(values.time)).getTime()) : String(values.value ?? '0');
  return {
    to: values.to,
    value: /^\d+$/.test(value) ? value : '0',
    topic: text(values.topic),
    broker: text(broker),
    queue_id: queue ? Number(queue) : undefined,
  };
}

export function GroupSettings({ group, settings, onDone }: { group: string; settings: Record<string, string | number | boolean> } & Done) {
  return (
    <ChangeButton
      label="change_settings"
      title={t('settings_of', { name: group })}
      path={`/groups/${segment(group)}/settings:plan`}
      start={{
        retries: String(settings.retry_count_max ?? 16),
        consume: settings.consume_enable !== false,
        order: settings.consume_message_orderly === true,
        broadcast: settings.consume_broadcast_enable !== false,
      }}
      form={(values, set) => (
        <>
          <Check label="may_consume" name="consume" values={values} set={set} />
          <Check label="orderly" name="order" values={values} set={set} />
          <Check label="may_broadcast" name="broadcast" values={values} set={set} />
          <Field label="retries" name="retries" values={values} set={set} isNumber required />
        </>
      )}
      bodyOf={(values) => ({
        retry_count_max: Number(values.retries),
        consume_enable: values.consume === true,
        consume_message_orderly: values.order === true,
        consume_broadcast_enable: values.broadcast === true,
      })}
      onDone={onDone}
    />
  );
}

export function SkipButton({ group, topic, broker, queueId, onDone }: { group: string; topic: string; broker: string; queueId: number } & Done) {
  return (
    <ChangeButton
      label="skip_message"
      small
      title={t('skip_on', { queue: `${topic} ${broker}/${queueId}` })}
      path={`/groups/${segment(group)}/skip:plan`}
      bodyOf={() => ({ topic, broker, queue_id: queueId })}
      onDone={onDone}
    />
  );
}

export function BrokerActions({ broker, settings, onDone }: { broker: string; settings: Record<string, string> } & Done) {
  const base = `/brokers/${segment(broker)}`;
  const isDrained = settings.brokerPermission === '4';
  return (
    <>
      <ChangeButton
        label={isDrained ? 'undrain' : 'drain'}
        title={t(isDrained ? 'undrain_broker' : 'drain_broker', { broker })}
        path={`${base}/drain:plan`}
        bodyOf={() => ({ takes_messages: isDrained })}
        onDone={onDone}
      />
      <ChangeButton
        label="change_settings"
        title={t('settings_of', { name: broker })}
        path={`${base}/settings:plan`}
        role="admin"
        form={(values, set) => (
          <>
            <Field label="col_setting" name="name" values={values} set={set} required />
            <Field label="col_value" name="value" values={values} set={set} required />
          </>
        )}
        bodyOf={(values) => ({ settings: { [String(values.name)]: String(values.value) } })}
        onDone={onDone}
      />
    </>
  );
}
