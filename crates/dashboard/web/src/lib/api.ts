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

let onSignedOut: () => void = () => {};

export function whenSignedOut(run: () => void): void {
  onSignedOut = run;
}

/** Returns a sentence about an error. */
export function sentence(error: unknown): string {
  if (error instanceof ProblemError) return error.message + (error.next ? ` — ${error.next}` : '');
  return error instanceof Error ? error.message : String(error);
}
