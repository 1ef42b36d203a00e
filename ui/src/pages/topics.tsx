// Topics: the list, and one topic with its queues, groups and settings.
import { useRoute } from 'preact-iso';
import { segment } from '../data/api';
import { usePlace } from '../data/place';
import { useResource } from '../data/resource';
import { ago, count, rate, short } from '../data/words';
import { t } from '../texts';
import { CreateTopic, TopicActions } from '../parts/actions';
import { Chart } from '../parts/chart';
import { ListPage } from '../parts/list';
import { Facts, PageHead, Tabs } from '../parts/page';
import { Shown } from '../parts/states';
import { type Column, Table } from '../parts/table';

export interface TopicRow {
  topic: string;
  kind: string;
  brokers: string[];
  queues: number;
  messages: number | null;
  put_per_second: number | null;
  groups: number;
  lag: number;
}

export const TOPIC_COLUMNS: Column<TopicRow>[] = [
  { id: 'topic', label: 'col_topic', sort: 'topic', wide: true, cell: (row) => row.topic },
  { id: 'kind', label: 'col_kind', sort: 'kind', cell: (row) => row.kind },
  { id: 'queues', label: 'col_queues', sort: 'queues', number: true, cell: (row) => count(row.queues) },
  { id: 'messages', label: 'col_messages', sort: 'messages', number: true, cell: (row) => <span title={count(row.messages)}>{short(row.messages)}</span> },
  { id: 'rate', label: 'fig_in', sort: 'put_per_second', number: true, cell: (row) => rate(row.put_per_second) },
  { id: 'groups', label: 'groups', sort: 'groups', number: true, cell: (row) => count(row.groups) },
  { id: 'lag', label: 'fig_lag', sort: 'lag', number: true, cell: (row) => <span title={count(row.lag)}>{short(row.lag)}</span> },
];

const KINDS = ['normal', 'retry', 'dlq', 'system'] as const;

export function TopicsPage() {
  const [place, go] = usePlace();
  return (
    <ListPage<TopicRow>
      titleKey="topics"
      path="/topics"
      columns={TOPIC_COLUMNS}
      href={(row) => `/topics/${segment(row.topic)}`}
      more={{ kind: place.kind }}
      defaultSort="topic"
      controls={
        <select aria-label={t('col_kind')} value={place.kind ?? 'normal'} onChange={(event) => go({ kind: event.currentTarget.value === 'normal' ? undefined : event.currentTarget.value })}>
          {KINDS.map((one) => (
            <option key={one} value={one}>
              {t(`kind_${one}`)}
            </option>
          ))}
          <option value={KINDS.join(',')}>{t('kind_all')}</option>
        </select>
      }
    >
      <CreateTopic />
    </ListPage>
  );
}

export interface TopicQueue {
  broker: string;
  queue_id: number;
  queue_offset_min: string;
  queue_offset_max: string;
  messages: number;
  last_store_timestamp_ms: number | null;
}

interface TopicBroker {
  broker: string;
  addresses: Record<string, string>;
  read_queues: number;
  write_queues: number;
  perm: string;
  order: boolean | null;
  attributes: Record<string, string>;
}

export interface TopicTold {
  asked_ms: number;
  topic: string;
  clusters: string[];
  order_config: Record<string, number>;
  messages: number;
  put_per_second: number;
  brokers: TopicBroker[];
  queues: TopicQueue[];
  groups: string[];
}

// Settings in which the brokers of a topic differ, most likely by mistake.
function settingsDiffer(told: TopicTold): boolean {
  const shapes = told.brokers.map((one) => JSON.stringify([one.read_queues, one.write_queues, one.perm, one.order, one.attributes]));
  return new Set(shapes).size > 1;
}

export function TopicPage() {
  const { params } = useRoute();
  const topic = params.topic!;
  const tab = params.tab ?? 'queues';
  const told = useResource<TopicTold>(`/topics/${segment(topic)}`, {}, { live: tab === 'queues' });
  const base = `/topics/${segment(topic)}`;
  return (
    <>
      <PageHead title={topic} kind={t('topic')} sampledMs={told.data?.asked_ms}>
        {told.data && <TopicActions topic={topic} queues={Math.max(1, ...told.data.brokers.map((one) => one.write_queues))} onDone={told.reload} />}
        <a class="button" href={`/messages?topic=${segment(topic)}`}>
          {t('messages')}
        </a>
      </PageHead>
      <Tabs
        label={topic}
        here={`${base}/${tab}`}
        tabs={[
          { href: `${base}/queues`, label: 'col_queues', count: told.data?.queues.length },
          { href: `${base}/groups`, label: 'groups', count: told.data?.groups.length },
          { href: `${base}/config`, label: 'settings', warn: told.data && settingsDiffer(told.data) },
        ]}
      />
      <Shown of={told}>
        {(data) => (tab === 'groups' ? <Groups told={data} /> : tab === 'config' ? <Config told={data} /> : <Queues told={data} />)}
      </Shown>
    </>
  );
}

function Queues({ told }: { told: TopicTold }) {
  const base = `/messages?topic=${segment(told.topic)}`;
  return (
    <>
      <Facts
        facts={[
          ['col_messages', count(told.messages)],
          ['fig_in', rate(told.put_per_second)],
          ['clusters', told.clusters.join(', ')],
          ['brokers', told.brokers.map((one) => one.broker).join(', ')],
        ]}
      />
      <section class="card">
        <Chart label={t('topic_rate')} lines={[{ label: t('fig_in'), query: { series: `topic:${told.topic}` } }]} />
      </section>
      <Table
        label={t('col_queues')}
        rows={told.queues}
        rowKey={(row) => `${row.broker}/${row.queue_id}`}
        href={(row) => `${base}&queue=${segment(`${row.broker}:${row.queue_id}`)}`}
        columns={[
          { id: 'queue', label: 'col_queue', cell: (row) => `${row.broker}/${row.queue_id}` },
          { id: 'min', label: 'col_min', number: true, cell: (row) => count(row.queue_offset_min) },
          { id: 'max', label: 'col_max', number: true, cell: (row) => count(row.queue_offset_max) },
          { id: 'messages', label: 'col_messages', number: true, cell: (row) => count(row.messages) },
          { id: 'last', label: 'col_last', cell: (row) => ago(row.last_store_timestamp_ms) },
        ]}
        empty={t('state_empty')}
      />
    </>
  );
}

function Groups({ told }: { told: TopicTold }) {
  return (
    <Table
      label={t('groups')}
      rows={told.groups}
      rowKey={(row) => row}
      href={(row) => `/groups/${segment(row)}`}
      columns={[{ id: 'group', label: 'col_group', wide: true, cell: (row) => row }]}
      empty={t('nobody_consumes')}
    />
  );
}

function Config({ told }: { told: TopicTold }) {
  return (
    <>
      {settingsDiffer(told) && <p class="notice warn">{t('settings_differ')}</p>}
      <Table
        label={t('settings')}
        rows={told.brokers}
        rowKey={(row) => row.broker}
        href={(row) => `/brokers/${segment(row.broker)}`}
        columns={[
          { id: 'broker', label: 'col_broker', cell: (row) => row.broker },
          { id: 'read', label: 'col_read_queues', number: true, cell: (row) => row.read_queues },
          { id: 'write', label: 'col_write_queues', number: true, cell: (row) => row.write_queues },
          { id: 'perm', label: 'col_perm', cell: (row) => row.perm },
          { id: 'order', label: 'col_order', cell: (row) => (row.order ? t('yes') : t('no')) },
          { id: 'attributes', label: 'col_attributes', wide: true, cell: (row) => Object.entries(row.attributes).map(([name, value]) => `${name}=${value}`).join(', ') },
        ]}
        empty={t('state_empty')}
      />
    </>
  );
}
