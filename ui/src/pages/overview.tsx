// The overview: the cluster at a glance, all from one sample.
import { useResource } from '../data/resource';
import type { Missing } from '../data/resource';
import { segment } from '../data/api';
import { count, percent, rate, short } from '../data/words';
import { t } from '../texts';
import { Chart } from '../parts/chart';
import { Bar, Dot, PageHead } from '../parts/page';
import { Partial, Shown } from '../parts/states';
import { Table } from '../parts/table';
import { GROUP_COLUMNS, type GroupRow } from './groups';
import { TOPIC_COLUMNS, type TopicRow } from './topics';

export interface BrokerRow {
  cluster: string;
  broker: string;
  broker_id: number;
  address: string;
  version: string | null;
  contrail_version: string | null;
  put_per_second: number | null;
  get_per_second: number | null;
  put_count_today: number | null;
  get_count_today: number | null;
  disk_used_ratio: number | null;
  uptime_ms: number | null;
  perm: string | null;
  takes_messages: boolean | null;
  error: string | null;
}

interface Overview {
  sampled_ms: number;
  partial: Missing[];
  name_servers: string[];
  totals: {
    in_per_second: number | null;
    out_per_second: number | null;
    lag: number | null;
    topics: number;
    groups: number;
    dead_letters: number | null;
    timers: number | null;
    halves: number | null;
  };
  furthest_behind: GroupRow[];
  busiest: TopicRow[];
  brokers: BrokerRow[];
}

export function OverviewPage() {
  const told = useResource<Overview>('/overview', {}, { live: true });
  return (
    <>
      <PageHead title={t('overview')} sampledMs={told.data?.sampled_ms} />
      <Shown of={told}>{(data) => <Told data={data} />}</Shown>
    </>
  );
}

function Told({ data }: { data: Overview }) {
  const { totals } = data;
  return (
    <>
      <Partial missing={data.partial} />
      <div class="figures">
        <Figure label={t('fig_in')} value={rate(totals.in_per_second)} />
        <Figure label={t('fig_out')} value={rate(totals.out_per_second)} />
        <Figure label={t('fig_lag')} value={short(totals.lag)} title={count(totals.lag)} href="/groups?sort=-lag" />
        <Figure label={t('topics')} value={count(totals.topics)} href="/topics" />
        <Figure label={t('groups')} value={count(totals.groups)} href="/groups" />
        <Figure label={t('dead_letters')} value={short(totals.dead_letters)} title={count(totals.dead_letters)} href="/dlq" />
        <Figure label={t('fig_timers')} value={short(totals.timers)} href="/timers" />
        <Figure label={t('fig_halves')} value={short(totals.halves)} href="/transactions" />
      </div>
      <div class="split">
        <section class="card">
          <h2>{t('traffic')}</h2>
          <Chart
            label={t('traffic_label')}
            lines={[
              { label: t('fig_in'), query: { series: 'in' } },
              { label: t('fig_out'), query: { series: 'out' } },
            ]}
          />
        </section>
        <section class="card">
          <h2>{t('lag_all')}</h2>
          <Chart label={t('lag_all')} lines={[{ label: t('fig_lag'), query: { series: 'lag' } }]} />
        </section>
      </div>
      <div class="split">
        <section class="card">
          <h2>{t('furthest_behind')}</h2>
          <Table
            label={t('furthest_behind')}
            columns={GROUP_COLUMNS.filter((one) => ['group', 'members', 'lag'].includes(one.id))}
            rows={data.furthest_behind}
            rowKey={(row) => row.group}
            href={(row) => `/groups/${segment(row.group)}`}
            empty={t('nobody_behind')}
          />
        </section>
        <section class="card">
          <h2>{t('busiest')}</h2>
          <Table
            label={t('busiest')}
            columns={TOPIC_COLUMNS.filter((one) => ['topic', 'rate', 'lag'].includes(one.id))}
            rows={data.busiest}
            rowKey={(row) => row.topic}
            href={(row) => `/topics/${segment(row.topic)}`}
            empty={t('no_traffic')}
          />
        </section>
      </div>
      <section class="card">
        <h2>{t('brokers')}</h2>
        <BrokerTable rows={data.brokers} />
      </section>
    </>
  );
}

export function BrokerTable({ rows }: { rows: BrokerRow[] }) {
  return (
    <Table
      label={t('brokers')}
      rows={rows}
      rowKey={(row) => row.address}
      href={(row) => `/brokers/${segment(row.broker_id === 0 ? row.broker : row.address)}`}
      columns={[
        { id: 'broker', label: 'col_broker', cell: (row) => row.broker },
        {
          id: 'state',
          label: 'col_state',
          cell: (row) => (
            <>
              <Dot
                is={row.error ? 'bad' : row.takes_messages === false ? 'warn' : 'good'}
                label={row.error ? t('no_answer') : row.takes_messages === false ? t('drained') : t('in_service')}
              />{' '}
              {row.error ? t('no_answer') : row.broker_id === 0 ? (row.takes_messages === false ? t('drained') : t('in_service')) : t('replica_n', { n: row.broker_id })}
            </>
          ),
        },
        { id: 'address', label: 'col_address', cell: (row) => <code>{row.address}</code> },
        { id: 'version', label: 'col_version', cell: (row) => (row.contrail_version ? `Contrail ${row.contrail_version}` : (row.version ?? t('unknown'))) },
        { id: 'in', label: 'fig_in', number: true, cell: (row) => rate(row.put_per_second) },
        { id: 'out', label: 'fig_out', number: true, cell: (row) => rate(row.get_per_second) },
        { id: 'disk', label: 'col_disk', number: true, cell: (row) => <Bar ratio={row.disk_used_ratio} label={percent(row.disk_used_ratio)} /> },
      ]}
      empty={t('state_empty')}
    />
  );
}

function Figure({ label, value, title, href }: { label: string; value: string; title?: string; href?: string }) {
  const inside = (
    <>
      <span class="label">{label}</span>
      <span class="value" title={title}>
        {value}
      </span>
    </>
  );
  return href ? (
    <a class="figure" href={href}>
      {inside}
    </a>
  ) : (
    <div class="figure">{inside}</div>
  );
}
