// The login: the only page without a session.
import { useEffect, useState } from 'preact/hooks';
import { ApiError, logIn } from '../data/api';
import { t } from '../texts';
import { Preferences } from '../parts/shell';

export function LoginPage() {
  const [error, setError] = useState('');
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    document.title = `${t('login')} · Contrail`;
  }, []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    try {
      await logIn(String(form.get('account')), String(form.get('password')));
    } catch (failure) {
      setError(failure instanceof ApiError ? failure.message : String(failure));
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form onSubmit={submit}>
        <img src="/assets/icon.svg" alt="" width={40} height={40} />
        <h1>{t('console')}</h1>
        <div class="field">
          <label for="account">{t('account')}</label>
          <input id="account" name="account" required autocomplete="username" autofocus />
        </div>
        <div class="field">
          <label for="password">{t('password')}</label>
          <input id="password" name="password" type="password" required autocomplete="current-password" />
        </div>
        {error && (
          <p class="notice bad" role="alert">
            {error}
          </p>
        )}
        <button type="submit" class="main" disabled={isBusy}>
          {t('login')}
        </button>
        <p class="quiet">{t('login_hint')}</p>
        <Preferences />
      </form>
    </main>
  );
}
