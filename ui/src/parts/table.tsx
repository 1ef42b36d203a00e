// Tables. Of a long one only the rows in sight are in the page.
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from '@tanstack/virtual-core';
import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useReducer, useRef } from 'preact/hooks';
import { useLocation } from 'preact-iso';
import { type Key, t } from '../texts';

export interface Column<R> {
  id: string;
  label: Key;
  cell: (row: R) => ComponentChildren;
  // The field that the API sorts by.
  sort?: string;
  number?: boolean;
  wide?: boolean;
}

interface Shared<R> {
  label: string;
  columns: Column<R>[];
  href?: (row: R) => string;
}

interface SortState {
  sort?: string;
  onSort?: (sort: string) => void;
}

const ROW_PX = 34;
const OVERSCAN = 12;

function Head<R>({ columns, sort, onSort }: { columns: Column<R>[] } & SortState) {
  return (
    <thead>
      <tr>
        {columns.map((one) => {
          const is = sort === one.sort ? 'ascending' : sort === `-${one.sort}` ? 'descending' : undefined;
          const next = is === undefined ? (one.number ? `-${one.sort}` : one.sort!) : is === 'descending' ? one.sort! : `-${one.sort}`;
          return (
            <th key={one.id} scope="col" class={one.number ? 'number' : one.wide ? 'wide' : ''} aria-sort={is}>
              {one.sort && onSort ? (
                <button type="button" class="sort" onClick={() => onSort(next)}>
                  {t(one.label)}
                  <span aria-hidden="true">{is === 'ascending' ? ' ▲' : is === 'descending' ? ' ▼' : ''}</span>
                </button>
              ) : (
                t(one.label)
              )}
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

function Cells<R>({ columns, row, href }: { columns: Column<R>[]; row: R; href?: string }) {
  return (
    <>
      {columns.map((one, place) => (
        <td key={one.id} class={one.number ? 'number' : one.wide ? 'wide' : ''}>
          {place === 0 && href ? <a href={href}>{one.cell(row)}</a> : one.cell(row)}
        </td>
      ))}
    </>
  );
}

interface LongProps<R> extends Shared<R>, SortState {
  count: number;
  row: (index: number) => R | undefined;
  onWindow: (from: number, to: number) => void;
}

// Rows of one height in a window that scrolls; j and k walk, Enter opens.
export function LongTable<R>(props: LongProps<R>) {
  const { label, columns, href, count, row, onWindow } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((round: number) => round + 1, 0);
  const { route } = useLocation();
  const kept = useRef<Virtualizer<HTMLDivElement, Element> | null>(null);
  const options = {
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => redraw(0),
    initialRect: { width: 800, height: 800 },
  };
  kept.current ??= new Virtualizer<HTMLDivElement, Element>(options);
  const virtual = kept.current;
  virtual.setOptions(options);
  useEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());
  const items = virtual.getVirtualItems();
  const first = items[0]?.index ?? 0;
  const last = items[items.length - 1]?.index ?? 0;
  useEffect(() => {
    if (count > 0) onWindow(first, last);
  }, [first, last, count]);
  const above = items[0]?.start ?? 0;
  const below = Math.max(0, count * ROW_PX - (items[items.length - 1]?.end ?? 0));
  const walk = (event: KeyboardEvent) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const here = (document.activeElement?.closest('tr[data-index]') as HTMLElement | null)?.dataset.index;
    const next = Math.min(count - 1, Math.max(0, here === undefined ? 0 : Number(here) + by));
    virtual.scrollToIndex(next);
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`tr[data-index="${next}"] a`)?.focus());
  };
  return (
    <div class="scroll" ref={scroller} tabIndex={0} role="region" aria-label={label} onKeyDown={walk}>
      <table aria-rowcount={count + 1}>
        <caption class="unseen">{label}</caption>
        <Head {...props} />
        <tbody>
          {above > 0 && <tr class="space" aria-hidden="true" style={{ height: `${above}px` }} />}
          {items.map(({ index }) => {
            const found = row(index);
            const to = found && href?.(found);
            return (
              <tr
                key={index}
                data-index={index}
                aria-rowindex={index + 2}
                onDblClick={to ? () => route(to) : undefined}
              >
                {found ? (
                  <Cells columns={columns} row={found} href={to} />
                ) : (
                  <td colSpan={columns.length} class="waiting">
                    …
                  </td>
                )}
              </tr>
            );
          })}
          {below > 0 && <tr class="space" aria-hidden="true" style={{ height: `${below}px` }} />}
        </tbody>
      </table>
    </div>
  );
}

interface ShortProps<R> extends Shared<R>, SortState {
  rows: R[];
  rowKey: (row: R, index: number) => string;
  onOpen?: (row: R) => void;
  openKey?: string;
  empty?: string;
}

export function Table<R>({ label, columns, href, rows, rowKey, onOpen, openKey, empty, sort, onSort }: ShortProps<R>) {
  if (rows.length === 0 && empty) {
    return (
      <div class="state empty" data-state="empty">
        {empty}
      </div>
    );
  }
  return (
    <div class="short">
      <table>
        <caption class="unseen">{label}</caption>
        <Head columns={columns} sort={sort} onSort={onSort} />
        <tbody>
          {rows.map((row, index) => {
            const key = rowKey(row, index);
            return (
              <tr key={key} class={openKey === key ? 'open' : ''} onClick={onOpen && (() => onOpen(row))}>
                <Cells columns={columns} row={row} href={href?.(row)} />
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
