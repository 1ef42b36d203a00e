// One broker, replication, clients, access control: asked anew when they are opened.
import { useRoute } from 'preact-iso';
import { segment } from '../data/api';
import { usePlace } from '../data/place';
import { useResource } from '../data/resource';
import { bytes, count } from '../data/words';
import { t } from '../texts';
import { BrokerActions } from '../parts/actions';
import { ListPage } from '../parts/list';
import { Command, Facts, PageHead, Tabs } from '../parts/page';
import { ChangeButton, Field } from '../parts/plan';
import { Empty, Shown } from '../parts/states';
import { type Column, Table } from '../parts/table';

interface BrokerTold {
  asked_ms: number;
  broker: string;
  broker_id: number;
  cluster: string;
  address: string;
  runtime: Record<string, string>;
  settings: Record<string, string>;
  differs: Record<string, Record<string, string>>;
}

export function BrokerPage() {
  const { params } = useRoute();
  const name = params.broker!;
  const tab = params.tab ?? 'runtime';
  const [place, go] = usePlace();
  const told = useResource<BrokerTold>(`/brokers/${segment(name)}`);
  const base = `/brokers/${segment(name)}`;
  const q = (place.q ?? '').toLowerCase();
  return (
    <>
      <PageHead title={told.data?.broker ?? name} kind={t('col_broker')} sampledMs={told.data?.asked_ms}>
        {told.data && <BrokerActions broker={told.data.broker} settings={told.data.settings} onDone={told.reload} />}
      </PageHead>
      <Tabs
        label={name}
        here={`${base}/${tab}`}
        tabs={[
          { href: `${base}/runtime`, label: 'runtime' },
          { href: `${base}/config`, label: 'settings', warn: told.data && Object.keys(told.data.differs).length > 0 },
        ]}
      />
      <Shown of={told}>
        {(data) => {
          const values = Object.entries(tab === 'config' ? data.settings : data.runtime).filter(([key]) => key.toLowerCase().includes(q));
          return (
            <>
              <Facts
                facts={[
                  ['clusters', data.cluster],
                  ['col_address', data.address],
                  ['col_version', data.runtime.contrailVersion ?? data.runtime.brokerVersionDesc],
                  ['uptime', data.runtime.runtime],
                ]}
              />
              <input type="search" class="filter" data-filter aria-label={t('filter')} placeholder={t('filter')} value={place.q ?? ''} onInput={(event) => go({ q: event.currentTarget.value })} />
              <Table
                label={t(tab === 'config' ? 'settings' : 'runtime')}
                rows={values}
                rowKey={([key]) => key}
                columns={[
                  { id: 'name', label: 'col_setting', wide: true, cell: ([key]) => <code>{key}</code> },
                  { id: 'value', label: 'col_value', wide: true, cell: ([, value]) => <span title={value}>{value}</span> },
                  ...(tab === 'config'
                    ? [
                        {
                          id: 'differs',
                          label: 'col_elsewhere' as const,
                          wide: true,
                          cell: ([key]: [string, string]) =>
                            Object.entries(data.differs[key] ?? {})
                              .map(([broker, value]) => `${broker}: ${value}`)
                              .join(', '),
                        },
                      ]
                    : []),
                ]}
                empty={t('state_empty')}
              />
            </>
          );
        }}
      </Shown>
    </>
  );
}

interface Slave {
  address: string;
  broker_id: number | null;
  state: string;
  acknowledged_end: number;
  lag_bytes: number;
  lag_ms: number | null;
  in_sync: boolean;
}

interface Replica {
  cluster: string;
  broker: string;
  broker_id: number;
  address: string;
  role: string | null;
  log_end: number | null;
  acknowledged_end: number | null;
  required_replicas: number | null;
  in_sync_slaves: number | null;
  slaves: Slave[];
  master: { address: string; state: string; is_connected: boolean; lag_bytes: number | null; problem: string } | null;
  acting: string | null;
  error: string | null;
}

export function ReplicationPage() {
  const told = useResource<{ asked_ms: number; rows: Replica[] }>('/replication', {}, { live: true });
  return (
    <>
      <PageHead title={t('replication')} sampledMs={told.data?.asked_ms} />
      <Shown of={told}>
        {(data) => (data.rows.length === 0 ? <Empty text={t('state_empty')} /> : data.rows.map((one) => <ReplicaCard key={one.address} one={one} />))}
      </Shown>
    </>
  );
}

function ReplicaCard({ one }: { one: Replica }) {
  return (
    <section class="card">
      <div class="tools">
        <h2>
          {one.broker} · {one.role?.toLowerCase() ?? t('unknown')} <code>{one.address}</code>
        </h2>
        {one.broker_id === 0 && one.error === null && (
          <ChangeButton
            label="transfer"
            small
            role="admin"
            title={t('transfer_leader', { broker: one.broker })}
            path={`/replication/${segment(one.broker)}/transfer:plan`}
            form={(values, set) => <Field label="transfer_to" name="to" values={values} set={set} hint={t('transfer_hint')} />}
            bodyOf={(values) => ({ to: values.to ? String(values.to) : undefined })}
          />
        )}
      </div>
      {one.error !== null ? (
        <p class="quiet">{one.error}</p>
      ) : (
        <>
          <Facts
            facts={[
              ['log_end', bytes(one.log_end)],
              ['acknowledged', bytes(one.acknowledged_end)],
              ['required_replicas', count(one.required_replicas)],
              ['in_sync', count(one.in_sync_slaves)],
              ...(one.master ? ([['follows', `${one.master.address} ${one.master.problem || one.master.state}`]] as ['follows', string][]) : []),
            ]}
          />
          {one.slaves.length > 0 && (
            <Table
              label={t('slaves')}
              rows={one.slaves}
              rowKey={(row) => row.address}
              columns={[
                { id: 'address', label: 'col_address', cell: (row) => <code>{row.address}</code> },
                { id: 'state', label: 'col_state', cell: (row) => row.state },
                { id: 'bytes', label: 'behind_bytes', number: true, cell: (row) => bytes(row.lag_bytes) },
                { id: 'ms', label: 'behind_time', number: true, cell: (row) => (row.lag_ms === null ? t('unknown') : `${row.lag_ms} ms`) },
                { id: 'sync', label: 'in_sync', cell: (row) => (row.in_sync ? t('yes') : t('no')) },
              ]}
            />
          )}
        </>
      )}
    </section>
  );
}

interface Client {
  kind: string;
  group: string;
  client_id: string;
  address: string;
  language: string;
  version: number;
  release: string;
  brokers: string[];
}

const CLIENT_COLUMNS: Column<Client>[] = [
  { id: 'client', label: 'col_client', sort: 'client_id', wide: true, cell: (row) => row.client_id },
  { id: 'kind', label: 'col_kind', sort: 'kind', cell: (row) => t(row.kind === 'producer' ? 'producer' : 'consumer') },
  { id: 'group', label: 'col_group', sort: 'group', wide: true, cell: (row) => row.group },
  { id: 'address', label: 'col_address', sort: 'address', cell: (row) => <code>{row.address}</code> },
  { id: 'language', label: 'col_language', sort: 'language', cell: (row) => row.language },
  { id: 'version', label: 'col_version', sort: 'version', cell: (row) => row.release },
  { id: 'brokers', label: 'brokers', cell: (row) => row.brokers.join(', ') },
];

export const ClientsPage = () => (
  <ListPage<Client>
    titleKey="clients"
    path="/clients"
    columns={CLIENT_COLUMNS}
    href={(row) => (row.kind === 'producer' ? `/clients?q=${segment(row.client_id)}` : `/groups/${segment(row.group)}/members`)}
    defaultSort="client_id"
  />
);

interface Access {
  asked_ms: number;
  rows: {
    broker: string;
    error: string | null;
    users: { user: string; type: string; status: string }[];
    rights: { user: string; policy: string; resource: string; actions: string[]; sources: string[]; decision: string }[];
  }[];
}

export function AccessPage() {
  const told = useResource<Access>('/access');
  return (
    <>
      <PageHead title={t('access')} sampledMs={told.data?.asked_ms} />
      <Shown of={told}>
        {(data) =>
          data.rows.map((one) => (
            <section class="card" key={one.broker}>
              <h2>{one.broker}</h2>
              {one.error !== null ? (
                <p class="quiet">{one.error}</p>
              ) : (
                <>
                  <Table
                    label={t('users')}
                    rows={one.users}
                    rowKey={(row) => row.user}
                    columns={[
                      { id: 'user', label: 'col_user', cell: (row) => row.user },
                      { id: 'type', label: 'col_kind', cell: (row) => row.type },
                      { id: 'status', label: 'col_state', cell: (row) => row.status },
                    ]}
                    empty={t('no_users')}
                  />
                  <Table
                    label={t('rights')}
                    rows={one.rights}
                    rowKey={(_, index) => String(index)}
                    columns={[
                      { id: 'user', label: 'col_user', cell: (row) => row.user },
                      { id: 'resource', label: 'col_resource', wide: true, cell: (row) => <code>{row.resource}</code> },
                      { id: 'actions', label: 'col_actions', cell: (row) => row.actions.join(', ') },
                      { id: 'sources', label: 'col_sources', cell: (row) => row.sources.join(', ') },
                      { id: 'decision', label: 'col_decision', cell: (row) => row.decision },
                    ]}
                    empty={t('no_rights')}
                  />
                </>
              )}
            </section>
          ))
        }
      </Shown>
    </>
  );
}

interface Finding {
  id: string;
  severity: string;
  about: string;
  text: string;
  cause: string;
  fix: string;
  evidence: string[];
}

interface DoctorTold {
  asked_ms: number;
  brokers: number;
  groups: number;
  left_out: number;
  findings: Finding[];
}

export function DoctorPage() {
  const told = useResource<DoctorTold>('/doctor');
  return (
    <>
      <PageHead title={t('doctor')} sampledMs={told.data?.asked_ms}>
        <button type="button" onClick={told.reload}>
          {t('look_again')}
        </button>
      </PageHead>
      <Shown of={told}>
        {(data) => (
          <>
            <p class="quiet">
              {t('looked_at', { brokers: data.brokers, groups: data.groups })} {data.left_out > 0 && t('left_out', { n: data.left_out })}
            </p>
            <Findings findings={data.findings} />
          </>
        )}
      </Shown>
    </>
  );
}

export function Diagnosis({ group }: { group: string }) {
  const told = useResource<DoctorTold>('/doctor', { group });
  return (
    <section class="card">
      <h2>{t('diagnosis')}</h2>
      <Shown of={told}>{(data) => <Findings findings={data.findings} />}</Shown>
    </section>
  );
}

const TONES: Record<string, string> = { error: 'bad', warning: 'warn', notice: '' };

function Findings({ findings }: { findings: Finding[] }) {
  if (findings.length === 0) return <Empty text={t('all_well')} />;
  return (
    <>
      {findings.map((one, index) => (
        <article key={index} class={`notice ${TONES[one.severity] ?? ''}`}>
          <strong>{one.text}</strong>
          {one.evidence.length > 0 && (
            <ul>
              {one.evidence.map((line) => (
                <li key={line}>{line}</li>
              ))}
            </ul>
          )}
          <p>{one.cause}</p>
          <Command text={one.fix} />
        </article>
      ))}
    </>
  );
}
