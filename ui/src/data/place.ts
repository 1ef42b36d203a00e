// The state of a view is its address: filter, order, open row and window are in the query.
import { useLocation } from 'preact-iso';
import { useCallback } from 'preact/hooks';

export type Place = Record<string, string>;

// What the address says, and a change of it; an empty value takes a name out.
export function usePlace(): [Place, (changes: Record<string, string | undefined>, push?: boolean) => void] {
  const { path, query, route } = useLocation();
  const go = useCallback(
    (changes: Record<string, string | undefined>, push = false) => {
      const wanted = new URLSearchParams(window.location.search);
      for (const [name, value] of Object.entries(changes)) {
        if (value) wanted.set(name, value);
        else wanted.delete(name);
      }
      const text = wanted.toString();
      route(window.location.pathname + (text ? `?${text}` : ''), !push);
    },
    [path],
  );
  return [query as Place, go];
}
