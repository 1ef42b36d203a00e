// A figure over time: drawn by uPlot, with the same numbers in a table for screen readers.
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import type { Query } from '../data/api';
import { useResource } from '../data/resource';
import { language, theme } from '../data/settings';
import { count, short, time } from '../data/words';
import { t } from '../texts';
import { Failed, Loading } from './states';

export interface History {
  step_ms: number;
  end_ms: number;
  values: (number | null)[];
}

interface Line {
  label: string;
  path?: string;
  query: Query;
}

export function Chart({ label, lines, height = 140 }: { label: string; lines: Line[]; height?: number }) {
  const first = useResource<History>(lines[0]!.path ?? '/history', lines[0]!.query, { live: true });
  const second = useResource<History>(lines[1] ? (lines[1].path ?? '/history') : null, lines[1]?.query, { live: true });
  const told = lines[1] ? [first, second] : [first];
  if (told.some((one) => one.data === undefined)) {
    const error = told.find((one) => one.error)?.error;
    if (error?.status === 404) return <div class="state empty">{t('no_history')}</div>;
    return error ? <Failed error={error} retry={first.reload} /> : <Loading />;
  }
  return <Drawn label={label} names={lines.map((one) => one.label)} told={told.map((one) => one.data!)} height={height} />;
}

function Drawn({ label, names, told, height }: { label: string; names: string[]; told: History[]; height: number }) {
  const place = useRef<HTMLDivElement>(null);
  const { step_ms, end_ms, values } = told[0]!;
  const times = values.map((_, index) => end_ms - (values.length - index) * step_ms);
  useEffect(() => {
    const root = place.current;
    if (!root) return;
    // Colours come from the theme: an element of each class tells what it is now.
    const colour = (name: string): string => {
      const probe = root.appendChild(document.createElement('i'));
      probe.className = name;
      const found = getComputedStyle(probe).color;
      probe.remove();
      return found;
    };
    const axis = { stroke: colour('ink-quiet'), grid: { stroke: colour('ink-grid'), width: 1 }, ticks: { show: false } };
    const plot = new uPlot(
      {
        width: Math.max(120, root.clientWidth),
        height,
        legend: { show: false },
        cursor: { y: false },
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        axes: [
          { ...axis, size: 24, values: (_, splits) => splits.map((one) => new Date(one * 1000).toTimeString().slice(0, 5)) },
          { ...axis, size: 48, values: (_, splits) => splits.map((one) => short(one)) },
        ],
        series: [
          {},
          ...names.map((name, index) => ({
            label: name,
            stroke: colour(`ink-line-${index}`),
            width: 1.5,
            fill: index === 0 ? colour('ink-fill') : undefined,
          })),
        ],
      },
      [times.map((one) => one / 1000), ...told.map((one) => one.values)] as uPlot.AlignedData,
      root,
    );
    const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(120, root.clientWidth), height }));
    watch.observe(root);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [told.map((one) => one.end_ms).join(), theme.value, language.value, height]);
  const known = times.map((one, index) => [one, told.map((history) => history.values[index])] as const);
  return (
    <figure class="chart">
      <figcaption>
        {label}
        {names.length > 1 &&
          names.map((name, index) => (
            <span key={name} class={`key ink-line-${index}`}>
              ■ {name}
            </span>
          ))}
      </figcaption>
      <div ref={place} aria-hidden="true" />
      <details class="twin">
        <summary>{t('as_table')}</summary>
        <table>
          <thead>
            <tr>
              <th scope="col">{t('col_time')}</th>
              {names.map((name) => (
                <th key={name} scope="col" class="number">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {known
              .filter(([, numbers]) => numbers.some((one) => one != null))
              .slice(-30)
              .map(([at, numbers]) => (
                <tr key={at}>
                  <td>{time(at)}</td>
                  {numbers.map((one, index) => (
                    <td key={index} class="number">
                      {count(one == null ? null : Math.round(one))}
                    </td>
                  ))}
                </tr>
              ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
