// Calls of the HTTP API. Types come from openapi.json.
import createClient from 'openapi-fetch';
import type { components, paths } from './schema';

export type Schemas = components['schemas'];
export type Run = Schemas['RunView'];
export type RunDetail = Schemas['RunDetail'];
export type Step = Schemas['StepView'];
export type Execution = Schemas['ExecutionView'];
export type Entry = Schemas['EntryView'];
export type Gate = Schemas['GateView'];
export type Graph = Schemas['GraphView'];
export type Explained = Schemas['Explained'];
export type Live = Schemas['LiveView'];
export type Me = Schemas['Me'];

/** What a server says when it does not do what it was asked for. */
export class ProblemError extends Error {
  constructor(
    public status: number,
    public code: string,
    message: string,
    public next?: string,
  ) {
    super(message);
  }
}

export const client = createClient<paths>({ baseUrl: location.origin, credentials: 'same-origin' });

type Answered<T> = { data?: T; error?: unknown; response: Response };

/** Returns an answer's data and its place in the journal; throws a problem. */
export async function told<T>(call: Promise<Answered<T>>): Promise<{ data: T; seq: number }> {
  let answer: Answered<T>;
  try {
    answer = await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ProblemError(0, 'unreachable', 'The server does not answer.', 'Check that `sprag serve` runs.');
  }
  if (!answer.response.ok) {
    const problem = (answer.error ?? {}) as { code?: string; message?: string; next?: string };
    const code = problem.code ?? 'unknown';
    if (answer.response.status === 401) onSignedOut();
    throw new ProblemError(
      answer.response.status,
      code,
      problem.message ?? `The server answered ${answer.response.status}.`,
      problem.next,
    );
  }
  return { data: answer.data as T, seq: Number(answer.response.headers.get('sprag-seq') ?? 0) };
}

/** Calls an endpoint by its path, with an answer of type `T`: for parts of the API that have types of their own. */
export function call<T>(method: 'GET' | 'POST' | 'DELETE', path: string, body?: unknown): Promise<{ data: T; seq: number }> {
  const headers: Record<string, string> = body === undefined ? {} : { 'content-type': 'application/json' };
  const asked = fetch(path, { method, headers, credentials: 'same-origin', body: body === undefined ? undefined : JSON.stringify(body) });
  return told(
    asked.then(async (response): Promise<Answered<T>> => {
      const value: unknown = await response.json().catch(() => undefined);
      return response.ok ? { data: value as T, response } : { error: value, response };
    }),
  );
}

let onSignedOut: () => void = () => {};

export function whenSignedOut(run: () => void): void {
  onSignedOut = run;
}

/** Returns a sentence about an error. */
export function sentence(error: unknown): string {
  if (error instanceof ProblemError) return error.message + (error.next ? ` — ${error.next}` : '');
  return error instanceof Error ? error.message : String(error);
}
