// Requests to the console's API. A change carries the session's token; a 401 ends the session here.
import { signal } from '@preact/signals';

export interface Session {
  account: string;
  role: Role;
  csrf: string | null;
  idle_ms: number;
  ends_ms: number | null;
}

export type Role = 'viewer' | 'reader' | 'operator' | 'admin';

const ROLES: Role[] = ['viewer', 'reader', 'operator', 'admin'];

// undefined until the first answer, null without a login.
export const session = signal<Session | null | undefined>(undefined);

export const may = (role: Role): boolean =>
  session.value != null && ROLES.indexOf(session.value.role) >= ROLES.indexOf(role);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly needsRole: string | null = null,
  ) {
    super(message);
  }
}

export type Query = Record<string, string | number | boolean | undefined | null>;

export function pathOf(path: string, query: Query = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value != null && value !== '');
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]));
  return pairs.length ? `/api/v1${path}?${text}` : `/api/v1${path}`;
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return asked<T>(pathOf(path, query), { signal });
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = {};
  if (session.value?.csrf) headers['X-Contrail-Csrf'] = session.value.csrf;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const text = body === undefined ? undefined : JSON.stringify(body);
  return asked<T>(pathOf(path), { method, headers, body: text });
}

async function asked<T>(path: string, init: RequestInit): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, credentials: 'same-origin' });
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error;
    throw new ApiError(0, 'the console does not answer');
  }
  if (answer.ok) return (answer.status === 204 ? undefined : await answer.json()) as T;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401 && path !== pathOf('/session')) session.value = null;
  throw new ApiError(answer.status, problem.detail ?? answer.statusText, problem.needs_role);
}

export async function whoIsThere(): Promise<void> {
  try {
    session.value = await get<Session>('/session');
  } catch {
    session.value = null;
  }
}

export async function logIn(account: string, password: string): Promise<void> {
  session.value = await send<Session>('POST', '/session', { account, password });
}

export async function logOut(): Promise<void> {
  await send('DELETE', '/session');
  session.value = null;
}

export const segment = (name: string): string => encodeURIComponent(name);
