// The five states of a page: loading, empty, partial, failed, forbidden.
import type { ComponentChildren } from 'preact';
import type { ApiError } from '../data/api';
import type { Missing, Resource } from '../data/resource';
import { t } from '../texts';

export function Failed({ error, retry }: { error: ApiError; retry?: () => void }) {
  if (error.status === 403 && error.needsRole) {
    return (
      <div class="state forbidden" role="alert" data-state="forbidden">
        <h2>{t('state_forbidden')}</h2>
        <p>{t('state_forbidden_text', { role: error.needsRole })}</p>
      </div>
    );
  }
  return (
    <div class="state failed" role="alert" data-state="failed">
      <h2>{error.status === 404 ? t('state_missing') : t('state_failed')}</h2>
      <p>{error.message}</p>
      {retry && (
        <button type="button" onClick={retry}>
          {t('try_again')}
        </button>
      )}
    </div>
  );
}

export const Loading = () => (
  <div class="state loading" role="status" data-state="loading">
    <span class="spinner" aria-hidden="true" />
    {t('state_loading')}
  </div>
);

export const Empty = ({ text }: { text: string }) => (
  <div class="state empty" data-state="empty">
    {text}
  </div>
);

// The brokers that did not answer: their figures are missing, not zero.
export function Partial({ missing }: { missing: Missing[] }) {
  if (missing.length === 0) return null;
  return (
    <div class="notice warn" role="status" data-state="partial">
      <strong>{t('state_partial', { n: missing.length })}</strong>
      <ul>
        {missing.map((one) => (
          <li key={one.broker}>
            <b>{one.broker}</b>: {one.error}
          </li>
        ))}
      </ul>
    </div>
  );
}

// A resource's states around the page of its data.
export function Shown<T>({ of, children }: { of: Resource<T>; children: (data: T) => ComponentChildren }) {
  if (of.data === undefined) {
    return of.error ? <Failed error={of.error} retry={of.reload} /> : <Loading />;
  }
  return (
    <>
      {of.error && (
        <div class="notice warn" role="status">
          {t('state_old', { error: of.error.message })}
        </div>
      )}
      {children(of.data)}
    </>
  );
}
