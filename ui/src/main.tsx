// The page: a login, then the shell with the page of the address.
import { render } from 'preact';
import { ErrorBoundary, LocationProvider, Route, Router } from 'preact-iso';
import { session, whoIsThere } from './data/api';
import { Shell } from './parts/shell';
import { Empty, Loading } from './parts/states';
import { LoginPage } from './pages/login';
import { PAGES } from './pages';
import { t } from './texts';

const Nowhere = () => <Empty text={t('state_no_page')} />;

function App() {
  if (session.value === undefined) return <Loading />;
  if (session.value === null) return <LoginPage />;
  return (
    <LocationProvider scope={/^\/(?!api\/|assets\/|enter\/)/}>
      <ErrorBoundary>
        <Shell>
          <Router>
            {PAGES.map(([path, component]) => (
              <Route key={path} path={path} component={component} />
            ))}
            <Route default component={Nowhere} />
          </Router>
        </Shell>
      </ErrorBoundary>
    </LocationProvider>
  );
}

void whoIsThere();
render(<App />, document.getElementById('page')!);
