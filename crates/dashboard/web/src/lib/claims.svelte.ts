// Tasks that this tab has claimed. Their tokens are kept in memory alone, never in the browser's storage.
import { client, told, type Schemas } from './api';

export interface Held {
  board: string;
  task: Schemas['Claimed'];
}

export const claims = $state<{ list: Held[] }>({ list: [] });

/** Claims the next task of a board; returns the reason if there is none. */
export async function claim(board: string, name: string): Promise<string | undefined> {
  const { data } = await told(client.POST('/v1/tasks/claim', { body: { board, name, wait_s: 0 } }));
  if (data.task) {
    claims.list = [...claims.list, { board, task: data.task }];
    return undefined;
  }
  return data.nothing?.why.replaceAll('_', ' ') ?? 'empty';
}

export function forget(held: Held): void {
  claims.list = claims.list.filter((one) => one.task.token !== held.task.token);
}

/** Renews the lease of a claimed task. */
export async function renew(held: Held): Promise<void> {
  const { data } = await told(client.POST('/v1/tasks/{token}/heartbeat', { params: { path: { token: held.task.token } } }));
  claims.list = claims.list.map((one) => (one.task.token === held.task.token ? { ...one, task: { ...one.task, ...data } } : one));
}
