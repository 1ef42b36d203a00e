// Consumer groups: the list, and one group with lag, members, subscriptions and settings.
import { useRoute } from 'preact-iso';
import { segment } from '../data/api';
import { usePlace } from '../data/place';
import { useResource } from '../data/resource';
import { ago, count, rate, short } from '../data/words';
import { t } from '../texts';
import { CreateGroup, GroupActions, GroupSettings, SkipButton } from '../parts/actions';
import { Chart } from '../parts/chart';
import { HeatMap } from '../parts/heat';
import { ListPage } from '../parts/list';
import { Facts, PageHead, Tabs } from '../parts/page';
import { Shown } from '../parts/states';
import { type Column, Table } from '../parts/table';
import { Diagnosis } from './servers';

export interface GroupRow {
  group: string;
  is_internal: boolean;
  has_settings: boolean;
  members: number | null;
  model: string | null;
  consume_type: string | null;
  topics: string[];
  lag: number;
  consumed_per_second: number;
}

export const GROUP_COLUMNS: Column<GroupRow>[] = [
  { id: 'group', label: 'col_group', sort: 'group', wide: true, cell: (row) => row.group },
  { id: 'members', label: 'col_members', sort: 'members', number: true, cell: (row) => count(row.members) },
  { id: 'model', label: 'col_model', sort: 'model', cell: (row) => row.model?.toLowerCase() ?? '' },
  { id: 'topics', label: 'topics', sort: 'topics', wide: true, cell: (row) => row.topics.join(', ') },
  { id: 'rate', label: 'fig_out', sort: 'consumed_per_second', number: true, cell: (row) => rate(row.consumed_per_second) },
  { id: 'lag', label: 'fig_lag', sort: 'lag', number: true, cell: (row) => <span title={count(row.lag)}>{short(row.lag)}</span> },
];

export function GroupsPage() {
  const [place, go] = usePlace();
  return (
    <ListPage<GroupRow>
      titleKey="groups"
      path="/groups"
      columns={GROUP_COLUMNS}
      href={(row) => `/groups/${segment(row.group)}`}
      more={{ internal: place.internal }}
      defaultSort="-lag"
      controls={
        <label class="check">
          <input type="checkbox" checked={place.internal === 'true'} onChange={(event) => go({ internal: event.currentTarget.checked ? 'true' : undefined })} />
          {t('show_internal')}
        </label>
      }
    >
      <CreateGroup />
    </ListPage>
  );
}

interface Member {
  client_id: string;
  address: string;
  language: string;
  version: number;
  brokers: string[];
  queues: number | null;
}

export interface GroupQueue {
  topic: string;
  broker: string;
  queue_id: number;
  queue_offset_max: string;
  consumer_offset: string;
  lag: number;
  in_flight: number;
  last_timestamp_ms: number | null;
  client_id: string | null;
}

export interface GroupTold {
  asked_ms: number;
  group: string;
  model: string | null;
  consume_type: string | null;
  consume_from: string | null;
  lag: number;
  consumed_per_second: number;
  dead_letter_topic: string | null;
  members: Member[];
  subscriptions: { topic: string; type: string; expression: string }[];
  disagreements: { topic: string; members: { client_id: string; expression: string | null }[] }[];
  queues: GroupQueue[];
  settings: Record<string, Record<string, string | number | boolean>>;
  settings_differ: boolean;
}

const topicsOf = (told: GroupTold): string[] => [...new Set([...told.queues, ...told.subscriptions].map((one) => one.topic))].filter((one) => !one.startsWith('%')).sort();

const ownersOf = (told: GroupTold): Map<string, string> => new Map(told.queues.flatMap((one) => (one.client_id ? [[`${one.topic} ${one.broker}/${one.queue_id}`, one.client_id]] : [])));

export function GroupPage() {
  const { params } = useRoute();
  const group = params.group!;
  const tab = params.tab ?? 'queues';
  const told = useResource<GroupTold>(`/groups/${segment(group)}`, {}, { live: true });
  const base = `/groups/${segment(group)}`;
  const data = told.data;
  return (
    <>
      <PageHead title={group} kind={t('group')} sampledMs={data?.asked_ms}>
        {data && <GroupActions group={group} topics={topicsOf(data)} onDone={told.reload} />}
      </PageHead>
      <Tabs
        label={group}
        here={`${base}/${tab}`}
        tabs={[
          { href: `${base}/queues`, label: 'fig_lag' },
          { href: `${base}/members`, label: 'col_members', count: data?.members.length },
          { href: `${base}/subscriptions`, label: 'subscriptions', count: data?.subscriptions.length, warn: Boolean(data?.disagreements.length) },
          { href: `${base}/config`, label: 'settings', warn: data?.settings_differ },
        ]}
      />
      <Shown of={told}>
        {(told) =>
          tab === 'members' ? <Members told={told} /> : tab === 'subscriptions' ? <Subscriptions told={told} /> : tab === 'config' ? <Config told={told} /> : <Queues told={told} />
        }
      </Shown>
    </>
  );
}

function Queues({ told }: { told: GroupTold }) {
  return (
    <>
      <Facts
        facts={[
          ['fig_lag', count(told.lag)],
          ['fig_out', rate(told.consumed_per_second)],
          ['col_members', count(told.members.length)],
          ['col_model', told.model?.toLowerCase() ?? t('nobody_online')],
          ['dead_letters', told.dead_letter_topic ? <a href={`/dlq/${segment(told.group)}`}>{told.dead_letter_topic}</a> : t('none')],
        ]}
      />
      <section class="card">
        <Chart label={t('group_lag')} lines={[{ label: t('fig_lag'), query: { series: `group:${told.group}` } }]} />
      </section>
      <div class="split">
        <HeatMap group={told.group} owners={ownersOf(told)} />
        <Diagnosis group={told.group} />
      </div>
      <Table
        label={t('col_queues')}
        rows={told.queues}
        rowKey={(row) => `${row.topic}/${row.broker}/${row.queue_id}`}
        href={(row) => `/messages?topic=${segment(row.topic)}&queue=${segment(`${row.broker}:${row.queue_id}`)}`}
        columns={[
          { id: 'queue', label: 'col_queue', wide: true, cell: (row) => `${row.topic} ${row.broker}/${row.queue_id}` },
          { id: 'offset', label: 'col_consumed', number: true, cell: (row) => count(row.consumer_offset) },
          { id: 'max', label: 'col_max', number: true, cell: (row) => count(row.queue_offset_max) },
          { id: 'lag', label: 'fig_lag', number: true, cell: (row) => <b class={row.lag > 0 ? 'behind' : ''}>{count(row.lag)}</b> },
          { id: 'flight', label: 'col_in_flight', number: true, cell: (row) => count(row.in_flight) },
          { id: 'last', label: 'col_last_consumed', cell: (row) => ago(row.last_timestamp_ms) },
          { id: 'owner', label: 'col_owner', cell: (row) => row.client_id ?? '' },
          {
            id: 'act',
            label: 'col_action',
            cell: (row) => (row.lag > 0 && !row.topic.startsWith('%') ? <SkipButton group={told.group} topic={row.topic} broker={row.broker} queueId={row.queue_id} /> : ''),
          },
        ]}
        empty={t('consumed_nothing')}
      />
    </>
  );
}

function Members({ told }: { told: GroupTold }) {
  return (
    <Table
      label={t('col_members')}
      rows={told.members}
      rowKey={(row) => row.client_id}
      href={(row) => `/clients?q=${segment(row.client_id)}`}
      columns={[
        { id: 'client', label: 'col_client', wide: true, cell: (row) => row.client_id },
        { id: 'address', label: 'col_address', cell: (row) => <code>{row.address}</code> },
        { id: 'language', label: 'col_language', cell: (row) => row.language },
        { id: 'queues', label: 'col_queues', number: true, cell: (row) => count(row.queues) },
        { id: 'brokers', label: 'brokers', cell: (row) => row.brokers.join(', ') },
      ]}
      empty={t('nobody_online')}
    />
  );
}

function Subscriptions({ told }: { told: GroupTold }) {
  return (
    <>
      {told.disagreements.map((one) => (
        <div class="notice bad" key={one.topic}>
          <strong>{t('disagree', { topic: one.topic })}</strong>
          <ul>
            {one.members.map((member) => (
              <li key={member.client_id}>
                {member.client_id}: <code>{member.expression ?? t('not_subscribed')}</code>
              </li>
            ))}
          </ul>
        </div>
      ))}
      <Table
        label={t('subscriptions')}
        rows={told.subscriptions}
        rowKey={(row) => row.topic}
        href={(row) => `/topics/${segment(row.topic)}`}
        columns={[
          { id: 'topic', label: 'col_topic', wide: true, cell: (row) => row.topic },
          { id: 'type', label: 'col_kind', cell: (row) => row.type },
          { id: 'expression', label: 'col_expression', wide: true, cell: (row) => <code>{row.expression}</code> },
        ]}
        empty={t('nobody_online')}
      />
    </>
  );
}

function Config({ told }: { told: GroupTold }) {
  const brokers = Object.keys(told.settings);
  const names = [...new Set(brokers.flatMap((one) => Object.keys(told.settings[one]!)))];
  return (
    <>
      <div class="tools">
        <GroupSettings group={told.group} settings={told.settings[brokers[0] ?? ''] ?? {}} />
      </div>
      {told.settings_differ && <p class="notice warn">{t('settings_differ')}</p>}
      <Table
        label={t('settings')}
        rows={names}
        rowKey={(row) => row}
        columns={[
          { id: 'name', label: 'col_setting', cell: (row) => <code>{row}</code> },
          { id: 'value', label: 'col_value', wide: true, cell: (row) => valuesOf(told, row) },
        ]}
        empty={t('no_settings')}
      />
    </>
  );
}

// One value for all brokers, or each broker's own.
function valuesOf(told: GroupTold, name: string): string {
  const pairs = Object.entries(told.settings).map(([broker, row]) => [broker, String(row[name])] as const);
  if (new Set(pairs.map(([, value]) => value)).size === 1) return pairs[0]![1];
  return pairs.map(([broker, value]) => `${broker}: ${value}`).join(', ');
}
