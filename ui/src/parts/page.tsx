// The head of a page, its tabs, and small parts that pages share.
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import { useState } from 'preact/hooks';
import { ago } from '../data/words';
import { type Key, t } from '../texts';

interface HeadProps {
  title: string;
  kind?: string;
  sampledMs?: number;
  children?: ComponentChildren;
}

export function PageHead({ title, kind, sampledMs, children }: HeadProps) {
  useEffect(() => {
    document.title = `${title} · Contrail`;
  }, [title]);
  return (
    <header class="page-head">
      <div>
        {kind && <span class="kind">{kind}</span>}
        <h1 tabIndex={-1}>{title}</h1>
        {sampledMs ? <span class="quiet">{t('as_of', { ago: ago(sampledMs) })}</span> : null}
      </div>
      <div class="actions">{children}</div>
    </header>
  );
}

export interface Tab {
  href: string;
  label: Key;
  count?: number;
  warn?: boolean;
}

export function Tabs({ tabs, here, label }: { tabs: Tab[]; here: string; label: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((one) => (
        <a key={one.href} href={one.href} aria-current={one.href === here ? 'page' : undefined}>
          {t(one.label)}
          {one.count !== undefined && <span class="badge">{one.count}</span>}
          {one.warn && (
            <span class="badge warn" title={t('differs')}>
              !
            </span>
          )}
        </a>
      ))}
    </nav>
  );
}

export function Facts({ facts }: { facts: [Key, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{t(name)}</dt>
          <dd>{value ?? t('unknown')}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Copy({ text }: { text: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="small" onClick={copy}>
      {isDone ? t('copied') : t('copy')}
    </button>
  );
}

export const Command = ({ text }: { text: string }) => (
  <div class="command">
    <code>{text}</code>
    <Copy text={text} />
  </div>
);

export const Dot = ({ is, label }: { is: 'good' | 'warn' | 'bad' | 'idle'; label: string }) => (
  <span class={`dot ${is}`} role="img" aria-label={label} title={label} />
);

export function Bar({ ratio, label }: { ratio: number | null | undefined; label: string }) {
  if (ratio == null || ratio < 0) return <>{t('unknown')}</>;
  const percent = Math.min(100, Math.round(ratio * 100));
  return (
    <span class="bar" role="img" aria-label={`${label} ${percent} %`}>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect width="100" height="8" class="bar-back" />
        <rect width={percent} height="8" class={percent > 85 ? 'bar-bad' : 'bar-fill'} />
      </svg>
      {percent} %
    </span>
  );
}
