// The console's own audit log: who did what, from where, and how it ended.
import { useResource } from '../data/resource';
import { time } from '../data/words';
import { t } from '../texts';
import { PageHead } from '../parts/page';
import { Shown } from '../parts/states';
import { Table } from '../parts/table';

interface Line {
  at_ms: number;
  account: string;
  address: string;
  action: string;
  target: string;
  outcome: string;
}

export function AuditPage() {
  const told = useResource<{ rows: Line[] }>('/audit', { limit: 500 });
  return (
    <>
      <PageHead title={t('audit')}>
        <button type="button" onClick={told.reload}>
          {t('refresh')}
        </button>
      </PageHead>
      <Shown of={told}>
        {(data) => (
          <Table
            label={t('audit')}
            rows={data.rows}
            rowKey={(_, index) => String(index)}
            columns={[
              { id: 'time', label: 'col_time', cell: (row) => time(row.at_ms) },
              { id: 'account', label: 'account', cell: (row) => row.account },
              { id: 'address', label: 'col_address', cell: (row) => <code>{row.address}</code> },
              { id: 'action', label: 'col_action', cell: (row) => row.action },
              { id: 'target', label: 'col_target', wide: true, cell: (row) => row.target },
              { id: 'outcome', label: 'col_outcome', wide: true, cell: (row) => row.outcome },
            ]}
            empty={t('state_empty')}
          />
        )}
      </Shown>
    </>
  );
}
