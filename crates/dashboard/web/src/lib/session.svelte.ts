// Who is signed in, and what the frame shows beside every page.
import { client, told, whenSignedOut, type Me } from './api';
import { follow, unfollow } from './live.svelte';
import { setServerTime } from './time.svelte';

export const session = $state<{ me: Me | undefined; state: 'unknown' | 'in' | 'out'; ended: boolean; outdated: boolean }>({
  me: undefined,
  state: 'unknown',
  ended: false,
  outdated: false,
});

whenSignedOut(() => {
  if (session.state === 'in') session.ended = true;
  session.state = 'out';
  session.me = undefined;
  unfollow();
});

/** Asks the server who this is, and starts to follow the journal. */
export async function begin(): Promise<void> {
  const { data, seq } = await told(client.GET('/v1/me'));
  accept(data);
  follow(seq);
}

function accept(me: Me): void {
  // A server of another build has answered: this page may not understand it.
  if (session.me && session.me.page !== me.page) session.outdated = true;
  session.me = me;
  session.state = 'in';
  session.ended = false;
  setServerTime(me.now_ms);
}

export async function signIn(given: { token: string } | { code: string }): Promise<void> {
  const { data } = await told(client.POST('/v1/session', { body: given }));
  accept(data);
  await begin();
}

export async function signOut(): Promise<void> {
  await told(client.DELETE('/v1/session'));
  session.state = 'out';
  unfollow();
}

/** Whether the caller may change runs. */
export function mayRun(): boolean {
  return session.me?.scopes.some((scope) => scope === 'run' || scope === 'admin') ?? false;
}

/** Whether the caller may claim tasks. */
export function mayWork(): boolean {
  return session.me?.scopes.some((scope) => scope === 'work' || scope === 'admin') ?? false;
}
