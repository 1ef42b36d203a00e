// Messages that wait: timed ones and open transactions.
import { segment } from '../data/api';
import { useResource } from '../data/resource';
import type { Missing } from '../data/resource';
import { count, span, time } from '../data/words';
import { now } from '../data/events';
import { t } from '../texts';
import { PageHead } from '../parts/page';
import { ChangeButton } from '../parts/plan';
import { Partial, Shown } from '../parts/states';
import { Table } from '../parts/table';

interface Timer {
  due_timestamp_ms: number;
  topic: string;
  message_id: string;
  broker_name: string;
  delay_level: number | null;
  keys: string[];
  recall_handle: string | null;
}

interface Timers {
  asked_ms: number;
  partial: Missing[];
  counted: number | null;
  horizons: { within_s: number; count: number }[];
  total: number;
  rows: Timer[];
}

export function TimersPage() {
  const told = useResource<Timers>('/timers', { limit: 500 });
  return (
    <>
      <PageHead title={t('timers')} sampledMs={told.data?.asked_ms}>
        <button type="button" onClick={told.reload}>
          {t('refresh')}
        </button>
      </PageHead>
      <Shown of={told}>
        {(data) => (
          <>
            <Partial missing={data.partial} />
            <p class="quiet">{t('timers_counted', { n: count(data.counted), shown: count(data.rows.length), total: count(data.total) })}</p>
            {data.horizons.length > 0 && (
              <div class="figures">
                {data.horizons.map((one) => (
                  <div class="figure" key={one.within_s}>
                    <span class="label">{t('due_within', { span: span(one.within_s * 1000) })}</span>
                    <span class="value">{count(one.count)}</span>
                  </div>
                ))}
              </div>
            )}
            <Table
              label={t('timers')}
              rows={data.rows}
              rowKey={(row) => `${row.message_id}${row.due_timestamp_ms}`}
              columns={[
                { id: 'due', label: 'col_due', cell: (row) => <span title={time(row.due_timestamp_ms)}>{t('in_span', { span: span(row.due_timestamp_ms - now.value) })}</span> },
                { id: 'topic', label: 'col_topic', wide: true, cell: (row) => <a href={`/topics/${segment(row.topic)}`}>{row.topic}</a> },
                { id: 'keys', label: 'keys_label', cell: (row) => row.keys.join(' ') },
                { id: 'id', label: 'message_id', cell: (row) => <code>{row.message_id}</code> },
                { id: 'broker', label: 'col_broker', cell: (row) => row.broker_name },
                {
                  id: 'act',
                  label: 'col_action',
                  cell: (row) =>
                    row.recall_handle ? (
                      <ChangeButton label="recall" small title={t('recall_message', { id: row.message_id })} path="/timers/recall:plan" bodyOf={() => ({ handle: row.recall_handle })} onDone={told.reload} />
                    ) : (
                      t('delay_level', { n: row.delay_level ?? 0 })
                    ),
                },
              ]}
              empty={t('no_timers')}
            />
          </>
        )}
      </Shown>
    </>
  );
}

interface Transaction {
  broker_name: string;
  transaction_id: string;
  topic: string;
  producer_group: string;
  message_id: string;
  born_ms: number;
  age_ms: number;
  check_count: number;
  next_check_ms: number;
}

interface Transactions {
  asked_ms: number;
  partial: Missing[];
  total: number;
  rows: Transaction[];
}

export function TransactionsPage() {
  const told = useResource<Transactions>('/transactions', { limit: 500 });
  const settle = (row: Transaction, fate: 'commit' | 'rollback') => (
    <ChangeButton
      label={fate === 'commit' ? 'commit' : 'roll_back'}
      small
      danger={fate === 'rollback'}
      title={t(fate === 'commit' ? 'commit_half' : 'roll_back_half', { id: row.transaction_id })}
      path={`/transactions/${segment(row.broker_name)}/${segment(row.transaction_id)}/settle:plan`}
      bodyOf={() => ({ fate })}
      onDone={told.reload}
    />
  );
  return (
    <>
      <PageHead title={t('transactions')} sampledMs={told.data?.asked_ms}>
        <button type="button" onClick={told.reload}>
          {t('refresh')}
        </button>
      </PageHead>
      <Shown of={told}>
        {(data) => (
          <>
            <Partial missing={data.partial} />
            <Table
              label={t('transactions')}
              rows={data.rows}
              rowKey={(row) => `${row.broker_name}${row.transaction_id}`}
              columns={[
                { id: 'age', label: 'col_age', cell: (row) => <span title={time(row.born_ms)}>{span(row.age_ms)}</span> },
                { id: 'topic', label: 'col_topic', wide: true, cell: (row) => <a href={`/topics/${segment(row.topic)}`}>{row.topic}</a> },
                { id: 'group', label: 'producer_group', cell: (row) => row.producer_group },
                { id: 'broker', label: 'col_broker', cell: (row) => row.broker_name },
                { id: 'checks', label: 'col_checks', number: true, cell: (row) => row.check_count },
                { id: 'next', label: 'col_next_check', cell: (row) => (row.next_check_ms < 0 ? t('no_producer') : t('in_span', { span: span(row.next_check_ms - now.value) })) },
                { id: 'id', label: 'col_transaction', cell: (row) => <code>{row.transaction_id}</code> },
                {
                  id: 'act',
                  label: 'col_action',
                  cell: (row) => (
                    <>
                      {settle(row, 'commit')} {settle(row, 'rollback')}
                    </>
                  ),
                },
              ]}
              empty={t('no_transactions')}
            />
          </>
        )}
      </Shown>
    </>
  );
}
