// The dead-letter workbench: choose letters, edit them, send them back at a rate, see each outcome.
import { useRoute } from 'preact-iso';
import { useEffect, useState } from 'preact/hooks';
import { get, may, pathOf, segment, send } from '../data/api';
import { usePlace } from '../data/place';
import { useResource } from '../data/resource';
import type { Missing } from '../data/resource';
import { ago, count, time } from '../data/words';
import { t } from '../texts';
import { Dialog } from '../parts/dialog';
import { PageHead } from '../parts/page';
import { ChangeButton, Field } from '../parts/plan';
import { Partial, Shown } from '../parts/states';
import { Table } from '../parts/table';
import { type MessageTold, bodyText } from './messages';

interface Groups {
  sampled_ms: number;
  partial: Missing[];
  rows: { group: string; topic: string; count: number | null }[];
}

export function DeadLettersPage() {
  const told = useResource<Groups>('/dlq', {}, { live: true });
  return (
    <>
      <PageHead title={t('dead_letters')} sampledMs={told.data?.sampled_ms} />
      <Shown of={told}>
        {(data) => (
          <>
            <Partial missing={data.partial} />
            <Table
              label={t('dead_letters')}
              rows={data.rows}
              rowKey={(row) => row.group}
              href={(row) => `/dlq/${segment(row.group)}`}
              columns={[
                { id: 'group', label: 'col_group', wide: true, cell: (row) => row.group },
                { id: 'count', label: 'dead_letters', number: true, cell: (row) => count(row.count) },
              ]}
              empty={t('no_dead_letters')}
            />
          </>
        )}
      </Shown>
      <Replays />
    </>
  );
}

interface Letter {
  message: MessageTold;
  origin_topic: string | null;
  origin_message_id: string;
  reason: string;
}

interface Letters {
  group: string;
  is_cut: boolean;
  rows: Letter[];
}

const REASONS = ['', 'exhausted', 'given-up'] as const;

export function LettersPage() {
  const { params } = useRoute();
  const group = params.group!;
  const [place, go] = usePlace();
  const query = { reason: place.reason, tag: place.tag, key: place.key };
  const told = useResource<Letters>(`/dlq/${segment(group)}`, query);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [edits, setEdits] = useState<Record<string, string>>({});
  const [open, setOpen] = useState<Letter>();
  const [round, setRound] = useState(0);
  const ids = [...chosen];
  const toggle = (id: string) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const exportPath = (format: string) => pathOf(`/dlq/${segment(group)}/export`, { ...query, format });
  return (
    <>
      <PageHead title={group} kind={t('dead_letters')}>
        {may('reader') && (
          <>
            <a href={exportPath('json')} download>
              {t('export_json')}
            </a>
            <a href={exportPath('csv')} download>
              {t('export_csv')}
            </a>
          </>
        )}
      </PageHead>
      <div class="tools">
        <select aria-label={t('col_reason')} value={place.reason ?? ''} onChange={(event) => go({ reason: event.currentTarget.value })}>
          {REASONS.map((one) => (
            <option key={one} value={one}>
              {one === '' ? t('every_reason') : one}
            </option>
          ))}
        </select>
        <input aria-label={t('tags')} placeholder={t('tags')} value={place.tag ?? ''} onChange={(event) => go({ tag: event.currentTarget.value })} />
        <input aria-label={t('key')} placeholder={t('key')} value={place.key ?? ''} data-filter onChange={(event) => go({ key: event.currentTarget.value })} />
        <span class="quiet" role="status">
          {t('chosen_count', { n: ids.length })}
        </span>
        {ids.length > 0 && (
          <ChangeButton
            label="replay"
            title={t('replay_letters', { n: ids.length })}
            path={`/dlq/${segment(group)}/replay:plan`}
            start={{ rate: '50', to: '' }}
            form={(values, set) => (
              <>
                <Field label="rate" name="rate" values={values} set={set} isNumber required />
                <Field label="to_topic" name="to" values={values} set={set} hint={t('to_topic_hint')} />
              </>
            )}
            bodyOf={(values) => ({
              message_ids: ids,
              rate: Number(values.rate),
              to_topic: values.to ? String(values.to) : undefined,
              edits: Object.fromEntries(Object.entries(edits).filter(([id]) => chosen.has(id))),
            })}
            onDone={() => setRound(round + 1)}
          />
        )}
      </div>
      <Shown of={told}>
        {(data) => (
          <>
            {data.is_cut && <p class="notice warn">{t('letters_cut', { n: data.rows.length })}</p>}
            <Table
              label={t('dead_letters')}
              rows={data.rows}
              rowKey={(row) => row.message.message_id}
              columns={[
                {
                  id: 'choose',
                  label: 'choose',
                  cell: (row) => <input type="checkbox" aria-label={t('choose_letter', { id: row.message.keys.join(' ') || row.message.message_id })} checked={chosen.has(row.message.message_id)} onChange={() => toggle(row.message.message_id)} />,
                },
                {
                  id: 'keys',
                  label: 'keys_label',
                  cell: (row) => (
                    <button type="button" class="small" onClick={() => setOpen(row)}>
                      {row.message.keys.join(' ') || row.message.message_id.slice(-8)}
                    </button>
                  ),
                },
                { id: 'origin', label: 'col_origin', cell: (row) => row.origin_topic ?? t('unknown') },
                { id: 'reason', label: 'col_reason', cell: (row) => row.reason },
                { id: 'tries', label: 'col_tries', number: true, cell: (row) => row.message.reconsume_times },
                { id: 'time', label: 'col_given_up', cell: (row) => <span title={time(row.message.store_timestamp_ms)}>{ago(row.message.store_timestamp_ms)}</span> },
                { id: 'body', label: 'body', wide: true, cell: (row) => <code class={row.message.message_id in edits ? 'edited' : ''}>{edits[row.message.message_id] ?? bodyText(row.message.body)}</code> },
              ]}
              empty={t('no_letter_fits')}
            />
          </>
        )}
      </Shown>
      <Replays group={group} round={round} />
      {open && (
        <LetterDialog
          letter={open}
          edited={edits[open.message.message_id]}
          onEdit={(text) => {
            const { [open.message.message_id]: _, ...others } = edits;
            setEdits(text === null ? others : { ...others, [open.message.message_id]: text });
            setChosen(new Set([...chosen, open.message.message_id]));
          }}
          onClose={() => setOpen(undefined)}
        />
      )}
    </>
  );
}

function LetterDialog({ letter, edited, onEdit, onClose }: { letter: Letter; edited?: string; onEdit: (text: string | null) => void; onClose: () => void }) {
  const { message } = letter;
  const original = message.body.text;
  const [values, setValues] = useState<Record<string, string | boolean>>({ body: edited ?? original ?? '' });
  const mayEdit = original !== null && !message.body.is_cut && !message.body.is_masked && may('operator');
  return (
    <Dialog title={message.keys.join(' ') || message.message_id} onClose={onClose}>
      <p class="quiet">
        {letter.origin_topic ?? t('unknown')} {letter.origin_message_id}, {letter.reason}
      </p>
      {mayEdit ? <Field label="body" name="body" values={values} set={(changes) => setValues({ ...values, ...changes })} rows={12} /> : <pre class="body">{bodyText(message.body)}</pre>}
      <footer>
        <a href={`/messages/${segment(message.topic)}/${segment(message.offset_message_id || message.message_id)}`}>{t('story')}</a>
        {mayEdit && (
          <button
            type="button"
            class="main"
            onClick={(event) => {
              onEdit(values.body === original ? null : String(values.body));
              event.currentTarget.closest('dialog')?.close();
            }}
          >
            {t('keep_edit')}
          </button>
        )}
      </footer>
    </Dialog>
  );
}

interface ReplayTold {
  run_id: string;
  group: string;
  account: string;
  began_ms: number;
  rate: number;
  total: number;
  counts: Record<string, number>;
  is_running: boolean;
  outcomes: { message_id: string; outcome: string; detail: string; at_ms: number }[];
}

const POLL_MS = 1000;

function Replays({ group, round = 0 }: { group?: string; round?: number }) {
  const [place, go] = usePlace();
  const [rows, setRows] = useState<ReplayTold[]>([]);
  const [open, setOpen] = useState<ReplayTold>();
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let isOver = false;
    void (async () => {
      const told = await get<{ rows: ReplayTold[] }>('/replays', { group }).catch(() => ({ rows: [] }));
      const one = place.run ? await get<ReplayTold>(`/replays/${segment(place.run)}`).catch(() => undefined) : undefined;
      if (isOver) return;
      setRows(told.rows);
      setOpen(one);
      if (told.rows.some((row) => row.is_running)) setTimeout(() => !isOver && setTurn(turn + 1), POLL_MS);
    })();
    return () => {
      isOver = true;
    };
  }, [group, round, turn, place.run]);
  if (rows.length === 0) return null;
  const act = (one: ReplayTold) => async () => {
    await send('POST', `/replays/${segment(one.run_id)}:${one.is_running ? 'stop' : 'resume'}`);
    setTurn(turn + 1);
  };
  return (
    <section class="card" data-replays>
      <h2>{t('replays')}</h2>
      <Table
        label={t('replays')}
        rows={rows}
        rowKey={(row) => row.run_id}
        columns={[
          {
            id: 'run',
            label: 'col_run',
            cell: (row) => (
              <button type="button" class="small" aria-expanded={place.run === row.run_id} onClick={() => go({ run: place.run === row.run_id ? undefined : row.run_id })}>
                {row.run_id}
              </button>
            ),
          },
          { id: 'group', label: 'col_group', cell: (row) => row.group },
          { id: 'by', label: 'account', cell: (row) => row.account },
          { id: 'time', label: 'col_time', cell: (row) => ago(row.began_ms) },
          { id: 'state', label: 'col_state', cell: (row) => (row.is_running ? t('running') : sum(row) >= row.total ? t('over') : t('stopped')) },
          { id: 'counts', label: 'col_outcome', wide: true, cell: (row) => `${Object.entries(row.counts).map(([name, number]) => `${name} ${number}`).join(', ')} / ${row.total}` },
          {
            id: 'act',
            label: 'col_action',
            cell: (row) =>
              may('operator') && (row.is_running || sum(row) < row.total) ? (
                <button type="button" class="small" onClick={act(row)}>
                  {row.is_running ? t('stop') : t('go_on')}
                </button>
              ) : (
                ''
              ),
          },
        ]}
      />
      {open && (
        <Table
          label={t('col_outcome')}
          rows={open.outcomes}
          rowKey={(row) => row.message_id}
          columns={[
            { id: 'id', label: 'message_id', cell: (row) => <code>{row.message_id}</code> },
            { id: 'outcome', label: 'col_outcome', cell: (row) => row.outcome },
            { id: 'detail', label: 'col_what', wide: true, cell: (row) => row.detail },
          ]}
          empty={t('state_empty')}
        />
      )}
    </section>
  );
}

const sum = (one: ReplayTold): number => Object.values(one.counts).reduce((all, number) => all + number, 0);
