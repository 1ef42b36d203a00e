// The heat map of a group: a row for each queue, a column for each moment, darker for more lag.
import { segment } from '../data/api';
import { useResource } from '../data/resource';
import { clock, count, short } from '../data/words';
import { t } from '../texts';
import { Shown } from './states';

interface HeatRow {
  topic: string;
  broker: string;
  queue_id: number;
  values: (number | null)[];
}

interface Heat {
  step_ms: number;
  end_ms: number;
  rows: HeatRow[];
}

const CELLS = 60;
const CELL_PX = 10;
const SHADES = 5;

export function HeatMap({ group, owners }: { group: string; owners: Map<string, string> }) {
  const told = useResource<Heat>(`/groups/${segment(group)}/heat`, {}, { live: true });
  return (
    <section class="card">
      <h2>{t('heat')}</h2>
      <Shown of={told}>{(data) => (data.rows.length === 0 ? <p class="quiet">{t('heat_begins')}</p> : <Drawn heat={data} owners={owners} />)}</Shown>
    </section>
  );
}

// Cells of several steps each: the most that the lag was in them.
function cellsOf(values: (number | null)[]): (number | null)[] {
  const size = Math.ceil(values.length / CELLS);
  return Array.from({ length: Math.ceil(values.length / size) }, (_, place) => {
    const known = values.slice(place * size, (place + 1) * size).filter((one): one is number => one !== null);
    return known.length ? Math.max(...known) : null;
  });
}

function Drawn({ heat, owners }: { heat: Heat; owners: Map<string, string> }) {
  const most = Math.max(1, ...heat.rows.flatMap((one) => one.values.map((value) => value ?? 0)));
  const begin = heat.end_ms - heat.step_ms * (heat.rows[0]?.values.length ?? 0);
  const shade = (value: number | null): string => {
    if (value === null) return 'heat-unknown';
    if (value === 0) return 'heat-0';
    // By orders of magnitude: a lag of 10 shows beside one of a million.
    return `heat-${Math.min(SHADES, 1 + Math.floor((Math.log(value) / Math.log(most + 1)) * SHADES))}`;
  };
  return (
    <div class="short">
      <table class="heat">
        <caption class="quiet">{t('heat_label', { from: clock(begin), to: clock(heat.end_ms), most: short(most) })}</caption>
        <thead>
          <tr>
            <th scope="col">{t('col_queue')}</th>
            <th scope="col">{t('col_course')}</th>
            <th scope="col" class="number">
              {t('heat_was')}
            </th>
            <th scope="col" class="number">
              {t('heat_is')}
            </th>
            <th scope="col">{t('col_owner')}</th>
          </tr>
        </thead>
        <tbody>
          {heat.rows.map((row) => {
            const cells = cellsOf(row.values);
            const known = row.values.filter((one): one is number => one !== null);
            const name = `${row.topic} ${row.broker}/${row.queue_id}`;
            return (
              <tr key={name}>
                <td>{name}</td>
                <td class="cells">
                  <svg viewBox={`0 0 ${cells.length * CELL_PX} 16`} preserveAspectRatio="none" aria-hidden="true">
                    {cells.map((one, place) => (
                      <rect key={place} x={place * CELL_PX} width={CELL_PX} height={16} class={shade(one)} />
                    ))}
                  </svg>
                </td>
                <td class="number">{count(known.length ? Math.max(...known) : null)}</td>
                <td class="number">{count(known[known.length - 1])}</td>
                <td>{owners.get(name) ?? ''}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
