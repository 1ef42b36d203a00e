// Messages: a search from the newest backwards, a live tail, and the story of one message.
import { useLocation, useRoute } from 'preact-iso';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, may, pathOf, segment } from '../data/api';
import { usePlace } from '../data/place';
import { useResource } from '../data/resource';
import { bytes, clock, count, time } from '../data/words';
import { t } from '../texts';
import { PageHead } from '../parts/page';
import { ChangeButton, Field } from '../parts/plan';
import { Empty, Failed, Loading, Shown } from '../parts/states';
import { Table } from '../parts/table';

interface Body {
  text: string | null;
  base64: string | null;
  is_hidden: boolean;
  is_masked: boolean;
  is_cut: boolean;
}

export interface MessageTold {
  topic: string;
  broker: string;
  queue_id: number;
  queue_offset: string;
  message_id: string;
  offset_message_id: string;
  tags: string | null;
  keys: string[];
  properties: Record<string, string>;
  born_timestamp_ms: number;
  store_timestamp_ms: number;
  born_host: string;
  reconsume_times: number;
  body_bytes: number;
  body: Body;
  decode_error: string | null;
}

interface Page {
  rows: MessageTold[];
  place: string | null;
  scanned: number;
  total: number;
  until_ms: number | null;
  gaps: string[];
}

const FILTERS = ['tags', 'key', 'text', 'where', 'sql', 'queue'] as const;
const TAIL_ROWS_MAX = 500;

export function MessagesPage() {
  const [place, go] = usePlace();
  const topic = place.topic ?? '';
  return (
    <>
      <PageHead title={t('messages')} />
      <Search key={JSON.stringify(place)} place={place} go={go} />
      {!topic ? <Empty text={t('choose_topic')} /> : place.live === 'true' ? <Tail topic={topic} tags={place.tags ?? ''} /> : <Found topic={topic} place={place} />}
    </>
  );
}

function Search({ place, go }: { place: Record<string, string>; go: (changes: Record<string, string | undefined>, push?: boolean) => void }) {
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const read = (name: string) => String(form.get(name) ?? '').trim() || undefined;
    const moment = read('until');
    const until = moment ? String(new Date(moment).getTime()) : undefined;
    go({ topic: read('topic'), until: until === 'NaN' ? undefined : until, live: undefined, ...Object.fromEntries(FILTERS.map((name) => [name, read(name)])) }, true);
  };
  const input = (name: 'topic' | 'until' | (typeof FILTERS)[number], label: string, hint?: string) => (
    <div class="field">
      <label for={`search-${name}`}>{label}</label>
      <input id={`search-${name}`} name={name} defaultValue={name === 'until' ? (place.until ? new Date(Number(place.until)).toISOString() : '') : (place[name] ?? '')} placeholder={hint} data-filter={name === 'topic' ? true : undefined} autocomplete="off" spellcheck={false} />
    </div>
  );
  return (
    <form class="search card" onSubmit={submit}>
      {input('topic', t('col_topic'))}
      {input('tags', t('tags'), 'paid || open')}
      {input('key', t('key'))}
      {may('reader') && input('text', t('body_contains'))}
      {may('reader') && input('where', t('where'), '$.total > 100')}
      {may('reader') && input('sql', t('sql'), 'amount > 100')}
      {input('queue', t('col_queue'), 'broker-a:0')}
      {input('until', t('until'), t('time_hint'))}
      <div class="actions">
        <button type="submit" class="main">
          {t('search')}
        </button>
        <button type="button" onClick={() => go({ live: place.live === 'true' ? undefined : 'true' })} disabled={!place.topic} aria-pressed={place.live === 'true'}>
          {place.live === 'true' ? t('stop_tail') : t('live_tail')}
        </button>
      </div>
    </form>
  );
}

function Found({ topic, place }: { topic: string; place: Record<string, string> }) {
  const [pages, setPages] = useState<Page[]>([]);
  const [error, setError] = useState<ApiError>();
  const [isBusy, setBusy] = useState(true);
  const query = { ...Object.fromEntries(FILTERS.map((name) => [name, place[name]])), until_ms: place.until };
  const ask = async (from?: string) => {
    setBusy(true);
    setError(undefined);
    try {
      const page = await get<Page>(`/topics/${segment(topic)}/messages`, { ...query, place: from });
      setPages((before) => (from === undefined ? [page] : [...before, page]));
    } catch (failure) {
      setError(failure instanceof ApiError ? failure : new ApiError(0, String(failure)));
    } finally {
      setBusy(false);
    }
  };
  const key = JSON.stringify([topic, query]);
  useEffect(() => {
    setPages([]);
    void ask();
  }, [key]);
  const rows = pages.flatMap((one) => one.rows);
  const last = pages[pages.length - 1];
  const scanned = pages.reduce((sum, one) => sum + one.scanned, 0);
  if (last === undefined) return error ? <Failed error={error} retry={() => void ask()} /> : <Loading />;
  return (
    <>
      {pages.flatMap((one) => one.gaps).map((one) => (
        <p key={one} class="notice warn">
          {t('not_readable', { what: one })}
        </p>
      ))}
      <MessageTable rows={rows} />
      {error && <Failed error={error} />}
      <p class="quiet" role="status">
        {t(last.place === null ? 'scanned_all' : 'scanned', { n: count(scanned), total: count(pages[0]!.total) })}{' '}
        {last.place !== null && (
          <button type="button" onClick={() => void ask(last.place!)} disabled={isBusy}>
            {t('go_on')}
          </button>
        )}
      </p>
    </>
  );
}

export function bodyText(body: Body): string {
  if (body.is_hidden) return t(body.is_masked ? 'body_masked_whole' : 'body_hidden');
  if (body.text !== null) return body.text;
  return t('body_binary', { base64: (body.base64 ?? '').slice(0, 60) });
}

function MessageTable({ rows }: { rows: MessageTold[] }) {
  return (
    <Table
      label={t('messages')}
      rows={rows}
      rowKey={(row) => `${row.broker}/${row.queue_id}@${row.queue_offset}`}
      href={(row) => `/messages/${segment(row.topic)}/${segment(row.offset_message_id || row.message_id)}`}
      columns={[
        { id: 'time', label: 'col_time', cell: (row) => <span title={time(row.store_timestamp_ms)}>{clock(row.store_timestamp_ms)}</span> },
        { id: 'place', label: 'col_place', cell: (row) => `${row.broker}/${row.queue_id}@${row.queue_offset}` },
        { id: 'keys', label: 'keys_label', cell: (row) => row.keys.join(' ') },
        { id: 'tags', label: 'tags', cell: (row) => row.tags ?? '' },
        { id: 'body', label: 'body', wide: true, cell: (row) => <code>{bodyText(row.body)}</code> },
      ]}
      empty={t('no_message_fits')}
    />
  );
}

interface TailEvent {
  rows: MessageTold[];
  skipped: number;
  error: string | null;
}

function Tail({ topic, tags }: { topic: string; tags: string }) {
  const [rows, setRows] = useState<MessageTold[]>([]);
  const [skipped, setSkipped] = useState(0);
  const [error, setError] = useState<string | null>(null);
  const [isPaused, setPaused] = useState(false);
  const paused = useRef(false);
  paused.current = isPaused;
  useEffect(() => {
    const stream = new EventSource(pathOf(`/topics/${segment(topic)}/tail`, { tags: tags || undefined }));
    stream.addEventListener('rows', (event) => {
      const told: TailEvent = JSON.parse((event as MessageEvent<string>).data);
      setSkipped(told.skipped);
      setError(told.error);
      if (!paused.current) setRows((before) => [...told.rows.reverse(), ...before].slice(0, TAIL_ROWS_MAX));
    });
    stream.onerror = () => setError(t('stream_lost'));
    return () => stream.close();
  }, [topic, tags]);
  return (
    <>
      <div class="tools" role="status">
        <button type="button" onClick={() => setPaused(!isPaused)} aria-pressed={isPaused}>
          {isPaused ? t('go_on') : t('pause')}
        </button>
        <span class="quiet">{t('tail_state', { n: count(rows.length), skipped: count(skipped) })}</span>
      </div>
      {error && <p class="notice warn">{error}</p>}
      {rows.length === 0 ? <Empty text={t('tail_waits')} /> : <MessageTable rows={rows} />}
    </>
  );
}

// One message.

interface Whole {
  message: MessageTold;
  others: MessageTold[];
}

export function MessagePage() {
  const { params } = useRoute();
  const { query } = useLocation();
  const topic = params.topic!;
  const id = params.id!;
  const told = useResource<Whole>(`/topics/${segment(topic)}/messages/${segment(id)}`);
  return (
    <>
      <PageHead title={told.data?.message.keys.join(' ') || id} kind={t('message')}>
        {told.data && <Actions message={told.data.message} />}
      </PageHead>
      <Shown of={told}>{({ message }) => <One message={message} as={query.as ?? ''} />}</Shown>
      <Story topic={topic} id={id} />
    </>
  );
}

function Actions({ message }: { message: MessageTold }) {
  const base = `/topics/${segment(message.topic)}/messages/${segment(message.offset_message_id || message.message_id)}`;
  const original = message.body.text;
  return (
    <>
      <ChangeButton
        label="resend"
        title={t('resend_message', { id: message.message_id })}
        path={`${base}/resend:plan`}
        start={{ body: original ?? '', to: message.topic }}
        form={(values, set) => (
          <>
            {original !== null && !message.body.is_cut && !message.body.is_masked && <Field label="body" name="body" values={values} set={set} rows={10} />}
            <Field label="col_topic" name="to" values={values} set={set} />
          </>
        )}
        bodyOf={(values) => ({
          body: original !== null && values.body !== original ? String(values.body) : undefined,
          to_topic: values.to && values.to !== message.topic ? String(values.to) : undefined,
        })}
      />
      <ChangeButton
        label="run_on"
        title={t('run_on_member')}
        path={`${base}/run:plan`}
        form={(values, set) => (
          <>
            <Field label="col_group" name="group" values={values} set={set} required />
            <Field label="col_client" name="client_id" values={values} set={set} required />
          </>
        )}
      />
    </>
  );
}

const SHAPES = ['json', 'text', 'hex'] as const;

function One({ message, as }: { message: MessageTold; as: string }) {
  const [, go] = usePlace();
  const shape = SHAPES.find((one) => one === as) ?? (isJson(message.body.text) ? 'json' : 'text');
  return (
    <div class="split">
      <section class="card">
        <div class="tools">
          <h2>{t('body_of', { size: bytes(message.body_bytes) })}</h2>
          <select class="small" aria-label={t('shape')} value={shape} onChange={(event) => go({ as: event.currentTarget.value })}>
            {SHAPES.map((one) => (
              <option key={one} value={one}>
                {t(`shape_${one}`)}
              </option>
            ))}
          </select>
        </div>
        {message.body.is_cut && <p class="notice warn">{t('body_cut')}</p>}
        {message.body.is_masked && <p class="notice">{t('body_masked')}</p>}
        {message.decode_error && <p class="notice bad">{message.decode_error}</p>}
        <pre class="body" tabIndex={0} data-body>
          {shaped(message.body, shape)}
        </pre>
      </section>
      <section class="card">
        <h2>{t('properties')}</h2>
        <Table
          label={t('properties')}
          rows={factsOf(message)}
          rowKey={([name]) => name}
          columns={[
            { id: 'name', label: 'col_setting', cell: ([name]) => <code>{name}</code> },
            { id: 'value', label: 'col_value', wide: true, cell: ([, value]) => <span title={value}>{value}</span> },
          ]}
        />
      </section>
    </div>
  );
}

function factsOf(message: MessageTold): [string, string][] {
  return [
    [t('col_place'), `${message.topic} ${message.broker}/${message.queue_id}@${message.queue_offset}`],
    [t('stored'), time(message.store_timestamp_ms)],
    [t('born'), `${time(message.born_timestamp_ms)}, ${message.born_host}`],
    [t('message_id'), message.message_id],
    [t('offset_id'), message.offset_message_id],
    [t('tags'), message.tags ?? ''],
    [t('keys_label'), message.keys.join(' ')],
    ...Object.entries(message.properties),
  ];
}

function isJson(text: string | null): boolean {
  try {
    return text !== null && typeof JSON.parse(text) === 'object';
  } catch {
    return false;
  }
}

function shaped(body: Body, shape: (typeof SHAPES)[number]): string {
  if (body.is_hidden) return bodyText(body);
  if (shape === 'hex') {
    const raw = body.text !== null ? new TextEncoder().encode(body.text) : Uint8Array.from(atob(body.base64 ?? ''), (one) => one.charCodeAt(0));
    const lines = [];
    for (let at = 0; at < raw.length; at += 16) {
      const piece = [...raw.slice(at, at + 16)];
      const hex = piece.map((one) => one.toString(16).padStart(2, '0')).join(' ');
      const plain = piece.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : '.')).join('');
      lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${plain}`);
    }
    return lines.join('\n');
  }
  if (shape === 'json' && isJson(body.text)) return JSON.stringify(JSON.parse(body.text!), null, 2);
  return bodyText(body);
}

interface Step {
  kind: string;
  timestamp_ms: number | null;
  source: string;
  text: string;
  group: string | null;
  success: boolean | null;
  cost_ms: number | null;
}

interface StoryTold {
  steps: Step[];
  notes: string[];
}

// The waterfall: each step where it lies between the first and the last, its words beside it.
function Story({ topic, id }: { topic: string; id: string }) {
  const told = useResource<StoryTold>(`/topics/${segment(topic)}/messages/${segment(id)}/story`);
  return (
    <section class="card">
      <h2>{t('story')}</h2>
      <Shown of={told}>
        {({ steps, notes }) => {
          const times = steps.flatMap((one) => (one.timestamp_ms ? [one.timestamp_ms, one.timestamp_ms + (one.cost_ms ?? 0)] : []));
          const begin = Math.min(...times);
          const whole = Math.max(1, Math.max(...times) - begin);
          return (
            <>
              {notes.map((one) => (
                <p key={one} class="notice warn">
                  {one}
                </p>
              ))}
              <Table
                label={t('story')}
                rows={steps}
                rowKey={(_, index) => String(index)}
                columns={[
                  { id: 'time', label: 'col_time', cell: (row) => (row.timestamp_ms ? <span title={time(row.timestamp_ms)}>{clock(row.timestamp_ms)}</span> : '') },
                  { id: 'step', label: 'col_step', cell: (row) => <b class={row.success === false && row.kind !== 'progress' ? 'behind' : ''}>{row.kind}</b> },
                  { id: 'bar', label: 'col_course', cell: (row) => <Course at={row.timestamp_ms ? (row.timestamp_ms - begin) / whole : null} size={(row.cost_ms ?? 0) / whole} failed={row.success === false} /> },
                  { id: 'group', label: 'col_group', cell: (row) => row.group ?? '' },
                  { id: 'text', label: 'col_what', wide: true, cell: (row) => <span title={row.text}>{row.text}</span> },
                  { id: 'source', label: 'col_source', cell: (row) => row.source },
                ]}
              />
            </>
          );
        }}
      </Shown>
    </section>
  );
}

function Course({ at, size, failed }: { at: number | null; size: number; failed: boolean }) {
  if (at === null) return null;
  return (
    <svg class="course" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
      <rect width="100" height="8" class="bar-back" />
      <rect x={Math.min(98, at * 100)} width={Math.max(2, size * 100)} height="8" class={failed ? 'bar-bad' : 'bar-fill'} />
    </svg>
  );
}
