// What stands around every page: navigation, the state of the cluster, the account, the keys.
import type { ComponentChildren } from 'preact';
import { useLocation } from 'preact-iso';
import { useEffect, useRef, useState } from 'preact/hooks';
import { logOut, session } from '../data/api';
import { isConnected, missingCount, sampledMs } from '../data/events';
import { type Language, type Theme, choose, language, theme } from '../data/settings';
import { ago } from '../data/words';
import { type Key, t } from '../texts';
import { Dialog } from './dialog';
import { Dot } from './page';

interface Entry {
  path: string;
  label: Key;
  letter: string;
}

const PARTS: { label: Key; entries: Entry[] }[] = [
  {
    label: 'nav_watch',
    entries: [
      { path: '/', label: 'overview', letter: 'o' },
      { path: '/topics', label: 'topics', letter: 't' },
      { path: '/groups', label: 'groups', letter: 'g' },
      { path: '/messages', label: 'messages', letter: 'm' },
    ],
  },
  {
    label: 'nav_mend',
    entries: [
      { path: '/dlq', label: 'dead_letters', letter: 'd' },
      { path: '/timers', label: 'timers', letter: 'i' },
      { path: '/transactions', label: 'transactions', letter: 'x' },
    ],
  },
  {
    label: 'nav_cluster',
    entries: [
      { path: '/brokers', label: 'brokers', letter: 'b' },
      { path: '/replication', label: 'replication', letter: 'r' },
      { path: '/clients', label: 'clients', letter: 'c' },
      { path: '/doctor', label: 'doctor', letter: 'h' },
      { path: '/access', label: 'access', letter: 'a' },
      { path: '/audit', label: 'audit', letter: 'l' },
    ],
  },
];
const ENTRIES = PARTS.flatMap((one) => one.entries);
const JUMP_MS = 1500;

export function Shell({ children }: { children: ComponentChildren }) {
  const { path, route } = useLocation();
  const [isHelp, setHelp] = useState(false);
  const main = useRef<HTMLElement>(null);
  useKeys(route, () => setHelp(true));
  const isFirst = useRef(true);
  useEffect(() => {
    // A new page begins at its head, for people who cannot see that it has changed.
    if (isFirst.current) isFirst.current = false;
    else main.current?.querySelector<HTMLElement>('h1')?.focus();
  }, [path.split('/').slice(0, 3).join('/')]);
  const section = path === '/' ? '/' : `/${path.split('/')[1]}`;
  return (
    <div class="shell">
      <a class="skip" href="#main">
        {t('skip')}
      </a>
      <aside>
        <a class="brand" href="/">
          <img src="/assets/icon.svg" alt="" width={24} height={24} />
          <span>{t('console')}</span>
        </a>
        <nav aria-label={t('navigation')}>
          {PARTS.map((part) => (
            <section key={part.label} aria-label={t(part.label)}>
              <h2>{t(part.label)}</h2>
              {part.entries.map((one) => (
                <a key={one.path} href={one.path} aria-current={one.path === section ? 'page' : undefined} aria-keyshortcuts={`g ${one.letter}`}>
                  {t(one.label)}
                </a>
              ))}
            </section>
          ))}
        </nav>
        <footer>
          <a href="/licences">{t('licences')}</a>
          <a href="/api/v1/openapi.json" target="_blank" rel="noreferrer">
            API
          </a>
        </footer>
      </aside>
      <div class="top">
        <Connection />
        <div class="actions">
          <button type="button" class="small" onClick={() => setHelp(true)}>
            {t('keys')} <kbd>?</kbd>
          </button>
          <Preferences />
          <span class="quiet">
            {session.value?.account} ({session.value?.role})
          </span>
          <button type="button" class="small" onClick={() => void logOut()}>
            {t('logout')}
          </button>
        </div>
      </div>
      <main id="main" ref={main} tabIndex={-1}>
        {children}
      </main>
      {isHelp && <Help onClose={() => setHelp(false)} />}
    </div>
  );
}

function Connection() {
  if (!isConnected.value) {
    return (
      <span class="connection" role="status">
        <Dot is="bad" label={t('stream_lost')} /> {t('stream_lost')}
      </span>
    );
  }
  const missing = missingCount.value;
  return (
    <span class="connection" role="status">
      <Dot is={missing ? 'warn' : sampledMs.value ? 'good' : 'idle'} label={missing ? t('brokers_missing', { n: missing }) : t('all_answer')} />{' '}
      {missing ? t('brokers_missing', { n: missing }) : t('all_answer')}
      <span class="quiet" aria-live="off">
        {sampledMs.value ? ` ${t('as_of', { ago: ago(sampledMs.value) })}` : ''}
      </span>
    </span>
  );
}

export function Preferences() {
  return (
    <>
      <select class="small" aria-label={t('theme')} value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
        <option value="auto">{t('theme_auto')}</option>
        <option value="light">{t('theme_light')}</option>
        <option value="dark">{t('theme_dark')}</option>
      </select>
      <select class="small" aria-label={t('language')} value={language.value} onChange={(event) => choose(event.currentTarget.value as Language)}>
        <option value="en" lang="en">
          English
        </option>
        <option value="zh" lang="zh-CN">
          中文
        </option>
      </select>
    </>
  );
}

// `/` filters, `g` and a letter jumps, `?` helps; Esc leaves a field, and dialogs close by themselves.
function useKeys(route: (path: string) => void, help: () => void): void {
  const jumpUntil = useRef(0);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
      const target = event.target as HTMLElement;
      if (target.matches('input, textarea, select')) {
        if (event.key === 'Escape') target.blur();
        return;
      }
      if (Date.now() < jumpUntil.current) {
        jumpUntil.current = 0;
        const found = ENTRIES.find((one) => one.letter === event.key);
        if (found) {
          event.preventDefault();
          route(found.path);
        }
      } else if (event.key === 'g') jumpUntil.current = Date.now() + JUMP_MS;
      else if (event.key === '/') {
        const filter = document.querySelector<HTMLElement>('[data-filter]');
        if (filter) {
          event.preventDefault();
          filter.focus();
        }
      } else if (event.key === '?') {
        event.preventDefault();
        help();
      }
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title={t('keys')} onClose={onClose}>
      <dl class="keys">
        <dt>
          <kbd>/</kbd>
        </dt>
        <dd>{t('keys_filter')}</dd>
        <dt>
          <kbd>j</kbd> <kbd>k</kbd>
        </dt>
        <dd>{t('keys_walk')}</dd>
        <dt>
          <kbd>Enter</kbd>
        </dt>
        <dd>{t('keys_open')}</dd>
        <dt>
          <kbd>Esc</kbd>
        </dt>
        <dd>{t('keys_close')}</dd>
        {ENTRIES.map((one) => (
          <>
            <dt>
              <kbd>g</kbd> <kbd>{one.letter}</kbd>
            </dt>
            <dd>{t(one.label)}</dd>
          </>
        ))}
      </dl>
    </Dialog>
  );
}
