// The licences of all that is bundled into the page, as they stand in the installation too.
import { useEffect, useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { t } from '../texts';
import { PageHead } from '../parts/page';
import { Failed, Loading } from '../parts/states';

export function LicencesPage() {
  const [text, setText] = useState<string>();
  const [error, setError] = useState<ApiError>();
  useEffect(() => {
    fetch('/assets/licences.txt')
      .then(async (answer) => {
        if (!answer.ok) throw new ApiError(answer.status, answer.statusText);
        setText(await answer.text());
      })
      .catch((failure: Error) => setError(failure instanceof ApiError ? failure : new ApiError(0, failure.message)));
  }, []);
  return (
    <>
      <PageHead title={t('licences')} />
      {error ? <Failed error={error} /> : text === undefined ? <Loading /> : (
        <pre class="licences" tabIndex={0}>
          {text}
        </pre>
      )}
    </>
  );
}
