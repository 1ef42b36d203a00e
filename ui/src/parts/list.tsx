// A page that is one long list: filter, order and rows, all from its address.
import type { ComponentChildren } from 'preact';
import { usePlace } from '../data/place';
import { useRows } from '../data/resource';
import { count } from '../data/words';
import { type Key, t } from '../texts';
import { PageHead } from './page';
import { Empty, Failed, Loading, Partial } from './states';
import { type Column, LongTable } from './table';

interface Props<R> {
  titleKey: Key;
  path: string;
  columns: Column<R>[];
  href: (row: R) => string;
  // Further parts of the query that come from the address.
  more?: Record<string, string | undefined>;
  defaultSort?: string;
  children?: ComponentChildren;
  controls?: ComponentChildren;
}

export function ListPage<R>({ titleKey, path, columns, href, more, defaultSort, children, controls }: Props<R>) {
  const [place, go] = usePlace();
  const sort = place.sort ?? defaultSort;
  const rows = useRows<R>(path, { ...more, q: place.q, sort });
  return (
    <>
      <PageHead title={t(titleKey)} sampledMs={rows.sampledMs}>
        {children}
      </PageHead>
      <div class="tools">
        <Filter value={place.q ?? ''} onChange={(q) => go({ q })} />
        {controls}
        {rows.total !== undefined && (
          <span class="quiet" role="status">
            {t('rows_count', { n: count(rows.total) })}
          </span>
        )}
      </div>
      <Partial missing={rows.partial} />
      {rows.total === undefined ? (
        rows.error ? (
          <Failed error={rows.error} retry={rows.reload} />
        ) : (
          <Loading />
        )
      ) : rows.total === 0 ? (
        <Empty text={place.q ? t('state_none_fits', { q: place.q }) : t('state_empty')} />
      ) : (
        <LongTable
          label={t(titleKey)}
          columns={columns}
          href={href}
          count={rows.total}
          row={rows.row}
          onWindow={rows.want}
          sort={sort}
          onSort={(wanted) => go({ sort: wanted })}
        />
      )}
    </>
  );
}

export function Filter({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  return (
    <input
      type="search"
      class="filter"
      data-filter
      value={value}
      placeholder={t('filter')}
      aria-label={t('filter')}
      onInput={(event) => onChange(event.currentTarget.value)}
    />
  );
}
