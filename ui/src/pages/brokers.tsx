// Brokers: rates, disk and what they are there for.
import { useResource } from '../data/resource';
import type { Missing } from '../data/resource';
import { t } from '../texts';
import { PageHead } from '../parts/page';
import { Partial, Shown } from '../parts/states';
import { type BrokerRow, BrokerTable } from './overview';

interface Page {
  sampled_ms: number;
  partial: Missing[];
  total: number;
  rows: BrokerRow[];
}

export function BrokersPage() {
  const told = useResource<Page>('/brokers', { limit: 1000 }, { live: true });
  return (
    <>
      <PageHead title={t('brokers')} sampledMs={told.data?.sampled_ms} />
      <Shown of={told}>
        {(data) => (
          <>
            <Partial missing={data.partial} />
            <BrokerTable rows={data.rows} />
          </>
        )}
      </Shown>
    </>
  );
}
