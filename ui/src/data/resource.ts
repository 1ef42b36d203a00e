// What a page shows: loading, ready, failed or forbidden; empty and partial are seen from its data.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, type Query, get, pathOf } from './api';
import { sampledMs } from './events';

export interface Missing {
  broker: string;
  error: string;
}

export interface Resource<T> {
  data: T | undefined;
  // An error with data is one of a later question: the data is older than the page says.
  error: ApiError | undefined;
  isLoading: boolean;
  reload: () => void;
}

interface Options {
  // Ask again after each sample.
  live?: boolean;
}

export function useResource<T>(path: string | null, query: Query = {}, options: Options = {}): Resource<T> {
  const key = path === null ? null : pathOf(path, query);
  const [told, setTold] = useState<{ key: string | null; data?: T; error?: ApiError }>({ key: null });
  const [round, setRound] = useState(0);
  const asking = useRef<AbortController | null>(null);
  const sample = options.live ? sampledMs.value : 0;
  useEffect(() => {
    if (path === null) return;
    const controller = new AbortController();
    asking.current = controller;
    get<T>(path, query, controller.signal).then(
      (data) => setTold({ key, data }),
      (error: Error) => {
        if (error.name === 'AbortError') return;
        const known = error instanceof ApiError ? error : new ApiError(0, String(error));
        setTold((before) => ({ key, data: before.key === key ? before.data : undefined, error: known }));
      },
    );
    return () => controller.abort();
  }, [key, round, sample]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  const isOurs = told.key === key;
  return {
    data: isOurs ? told.data : undefined,
    error: isOurs ? told.error : undefined,
    isLoading: !isOurs && path !== null,
    reload,
  };
}

// Lists of any length: rows come in chunks, the visible ones first and anew after each sample.

interface Page<R> {
  sampled_ms: number;
  partial: Missing[];
  total: number;
  rows: R[];
}

export interface Rows<R> {
  total: number | undefined;
  sampledMs: number;
  partial: Missing[];
  error: ApiError | undefined;
  row: (index: number) => R | undefined;
  want: (from: number, to: number) => void;
  reload: () => void;
}

const CHUNK = 200;

export function useRows<R>(path: string, query: Query): Rows<R> {
  const key = pathOf(path, query);
  const kept = useRef<{ key: string; chunks: Map<number, R[]>; wanted: [number, number] } | null>(null);
  if (kept.current?.key !== key) kept.current = { key, chunks: new Map(), wanted: [0, CHUNK - 1] };
  const [head, setHead] = useState<{ key: string; page?: Page<R>; error?: ApiError }>({ key: '' });
  const [round, setRound] = useState(0);
  const sample = sampledMs.value;

  const load = useCallback(
    async (chunk: number, signal?: AbortSignal) => {
      const here = kept.current!;
      try {
        const page = await get<Page<R>>(path, { ...query, first: chunk * CHUNK, limit: CHUNK }, signal);
        if (kept.current !== here) return;
        here.chunks.set(chunk, page.rows);
        setHead({ key, page });
      } catch (error) {
        if ((error as Error).name === 'AbortError' || kept.current !== here) return;
        const known = error instanceof ApiError ? error : new ApiError(0, String(error));
        setHead((before) => ({ key, page: before.key === key ? before.page : undefined, error: known }));
      }
    },
    [key],
  );

  useEffect(() => {
    const controller = new AbortController();
    const [from, to] = kept.current!.wanted;
    const first = Math.floor(from / CHUNK);
    const last = Math.floor(to / CHUNK);
    const chunks = Array.from({ length: last - first + 1 }, (_, place) => first + place);
    // What is out of sight is asked for anew when it comes into sight.
    for (const chunk of [...kept.current!.chunks.keys()]) {
      if (chunk < first || chunk > last) kept.current!.chunks.delete(chunk);
    }
    for (const chunk of chunks) void load(chunk, controller.signal);
    return () => controller.abort();
  }, [key, round, sample]);

  const want = useCallback(
    (from: number, to: number) => {
      const here = kept.current!;
      here.wanted = [from, to];
      for (let chunk = Math.floor(from / CHUNK); chunk <= Math.floor(to / CHUNK); chunk++) {
        if (here.chunks.has(chunk)) continue;
        here.chunks.set(chunk, []);
        void load(chunk);
      }
    },
    [key],
  );
  const isOurs = head.key === key;
  return {
    total: isOurs ? head.page?.total : undefined,
    sampledMs: isOurs ? (head.page?.sampled_ms ?? 0) : 0,
    partial: isOurs ? (head.page?.partial ?? []) : [],
    error: isOurs ? head.error : undefined,
    row: (index) => kept.current!.chunks.get(Math.floor(index / CHUNK))?.[index % CHUNK],
    want,
    reload: useCallback(() => setRound((before) => before + 1), []),
  };
}
