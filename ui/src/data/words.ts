// Numbers and times as people read them.
import { language } from './settings';
import { t } from '../texts';
import { now } from './events';

const locale = (): string => (language.value === 'zh' ? 'zh-CN' : 'en-GB');

export function count(value: number | string | null | undefined): string {
  if (value == null) return t('unknown');
  return Number.isSafeInteger(Number(value)) ? Number(value).toLocaleString(locale()) : String(value);
}

// 12,431 as 12.4k: for places where the exact number stands beside it or in its title.
export function short(value: number | null | undefined): string {
  if (value == null) return t('unknown');
  const size = Math.abs(value);
  if (size < 1000) return Number.isInteger(value) ? String(value) : value.toFixed(size < 10 ? 1 : 0);
  const [by, unit] = size < 1e6 ? [1e3, 'k'] : size < 1e9 ? [1e6, 'M'] : [1e9, 'G'];
  return `${(value / by).toFixed(size / by < 100 ? 1 : 0)}${unit}`;
}

export function rate(value: number | null | undefined): string {
  return value == null ? t('unknown') : t('per_second', { n: short(value) });
}

export function percent(ratio: number | null | undefined): string {
  return ratio == null || ratio < 0 ? t('unknown') : `${Math.round(ratio * 100)} %`;
}

export function bytes(value: number | null | undefined): string {
  if (value == null) return t('unknown');
  if (value < 1024) return `${value} B`;
  const [by, unit] = value < 1 << 20 ? [1 << 10, 'KiB'] : value < 1 << 30 ? [1 << 20, 'MiB'] : [1 << 30, 'GiB'];
  return `${(value / by).toFixed(1)} ${unit}`;
}

export function time(ms: number | null | undefined): string {
  if (!ms) return t('unknown');
  return new Date(ms).toLocaleString(locale(), { dateStyle: 'medium', timeStyle: 'medium' });
}

export function clock(ms: number): string {
  const text = new Date(ms).toLocaleTimeString(locale(), { hour12: false });
  return `${text}.${String(ms % 1000).padStart(3, '0')}`;
}

export function span(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return t('span_s', { n: seconds });
  if (seconds < 3600) return t('span_min', { n: Math.round(seconds / 60) });
  if (seconds < 86_400) return t('span_h', { n: Math.round(seconds / 3600) });
  return t('span_d', { n: Math.round(seconds / 86_400) });
}

export function ago(ms: number | null | undefined): string {
  return ms ? t('ago', { span: span(now.value - ms) }) : t('unknown');
}
