// One stream of journal entries per browser. One tab, the leader, holds the connection and passes entries on to the
// others; when it closes, another tab takes its place and continues after the last entry that it saw.
//
//   server ── SSE ──▶ leader (Web Lock) ── BroadcastChannel ──▶ other tabs
//
// A tab that was asleep or reconnects asks for the entries after its own last one, so none is lost. If it is too far
// behind, it reads everything anew instead.
import type { Entry } from './api';

export type Link = 'connecting' | 'live' | 'stale';
type Listener = (entries: Entry[]) => void;
/** Something beside the journal: a refused report, or a change of the comments on a run's changes. */
export interface Hint {
  name: string;
  run?: string | null;
}
type Message =
  | { kind: 'entries'; entries: Entry[] }
  | { kind: 'state'; state: Link; since: number | null }
  | { kind: 'hints'; hints: Hint[] }
  | { kind: 'anew' }
  | { kind: 'hello' };

/** Silence beyond this means a lost connection: the server writes at least every 15 s. */
const SILENCE_MS = 45_000;
/** A tab that missed more entries than this reads its data anew. */
const FAR_BEHIND = 10_000;
const LONGEST_PAUSE_MS = 10_000;

export const live = $state({ state: 'connecting' as Link, since: null as number | null, seq: 0 });

const listeners = new Set<Listener>();
const anewListeners = new Set<() => void>();
const hintListeners = new Set<(hint: Hint) => void>();
let channel: BroadcastChannel | undefined;
let started = false;
let stopped = false;
let leading: AbortController | undefined;

/** Calls `run` with new entries; returns a function that ends this. */
export function onEntries(run: Listener): () => void {
  listeners.add(run);
  return () => listeners.delete(run);
}

/** Calls `run` when entries may have been missed. */
export function onAnew(run: () => void): () => void {
  anewListeners.add(run);
  return () => anewListeners.delete(run);
}

/** Calls `run` with each hint; returns a function that ends this. */
export function onHint(run: (hint: Hint) => void): () => void {
  hintListeners.add(run);
  return () => hintListeners.delete(run);
}

/** Starts to follow the journal after the entry `seq`. */
export function follow(seq: number): void {
  live.seq = Math.max(live.seq, seq);
  stopped = false;
  if (started) return;
  started = true;
  channel = 'BroadcastChannel' in globalThis ? new BroadcastChannel('sprag-journal') : undefined;
  channel?.addEventListener('message', (event: MessageEvent<Message>) => receive(event.data));
  channel?.postMessage({ kind: 'hello' } satisfies Message);
  if (navigator.locks) void navigator.locks.request('sprag-journal', () => lead());
  else void lead();
}

/** Ends the stream, such as after signing out. */
export function unfollow(): void {
  stopped = true;
  leading?.abort();
}

function receive(message: Message): void {
  if (message.kind === 'entries') deliver(message.entries);
  if (message.kind === 'hints') deliverHints(message.hints);
  if (message.kind === 'state') setState(message.state, message.since);
  if (message.kind === 'anew') anewListeners.forEach((run) => run());
  if (message.kind === 'hello' && leading) {
    channel?.postMessage({ kind: 'state', state: live.state, since: live.since } satisfies Message);
  }
}

function setState(state: Link, since: number | null): void {
  live.state = state;
  live.since = since;
}

function tellState(state: Link): void {
  setState(state, state === 'live' ? null : (live.since ?? Date.now()));
  channel?.postMessage({ kind: 'state', state: live.state, since: live.since } satisfies Message);
}

function deliver(entries: Entry[]): void {
  const fresh = entries.filter((entry) => entry.seq > live.seq);
  if (fresh.length === 0) return;
  // The journal's numbers have no gaps: one here means that this tab has missed entries.
  const missed = fresh[0]!.seq > live.seq + 1;
  live.seq = fresh[fresh.length - 1]!.seq;
  if (missed) anewListeners.forEach((run) => run());
  else listeners.forEach((run) => run(fresh));
}

function deliverHints(hints: Hint[]): void {
  for (const hint of hints) hintListeners.forEach((run) => run(hint));
}

/** Holds the connection for as long as this tab lives. */
async function lead(): Promise<void> {
  let pause = 250;
  for (;;) {
    if (stopped) {
      await new Promise((resolve) => setTimeout(resolve, 1_000));
      continue;
    }
    leading = new AbortController();
    try {
      await read(leading, () => {
        pause = 250;
        tellState('live');
      });
    } catch {
      // The connection was lost: below it is made again.
    }
    tellState('stale');
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

async function read(control: AbortController, onOpen: () => void): Promise<void> {
  let alarm = setTimeout(() => control.abort(), SILENCE_MS);
  const after = live.seq;
  const response = await fetch(`/v1/events?after=${after}&hints=true`, {
    credentials: 'same-origin',
    signal: control.signal,
    headers: { accept: 'text/event-stream' },
  });
  if (!response.ok || !response.body) throw new Error(String(response.status));
  // The server's last entry when the stream began.
  const head = Number(response.headers.get('sprag-seq') ?? after);
  if (head - after > FAR_BEHIND) {
    live.seq = head;
    control.abort();
    anewListeners.forEach((run) => run());
    channel?.postMessage({ kind: 'anew' } satisfies Message);
    return;
  }
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(alarm);
      alarm = setTimeout(() => control.abort(), SILENCE_MS);
      const parts = (rest + value).split('\n\n');
      rest = parts.pop() ?? '';
      const events = parts.map(parse);
      const entries = events.flatMap((event) => (event && 'entry' in event ? [event.entry] : []));
      const hints = events.flatMap((event) => (event && 'hint' in event ? [event.hint] : []));
      if (entries.length) {
        channel?.postMessage({ kind: 'entries', entries } satisfies Message);
        deliver(entries);
      }
      if (hints.length) {
        channel?.postMessage({ kind: 'hints', hints } satisfies Message);
        deliverHints(hints);
      }
    }
  } finally {
    clearTimeout(alarm);
  }
}

/** An event with a number is an entry of the journal; one without is a hint. */
function parse(event: string): { entry: Entry } | { hint: Hint } | undefined {
  const fields = new Map<string, string>();
  for (const line of event.split('\n')) {
    const at = line.indexOf(':');
    if (at > 0) fields.set(line.slice(0, at), line.slice(at + 1).trimStart());
  }
  const data = fields.get('data');
  if (!data) return undefined;
  try {
    const value = JSON.parse(data) as Entry & Hint;
    return fields.has('id') ? { entry: value } : { hint: { ...value, name: fields.get('event') ?? '' } };
  } catch {
    return undefined;
  }
}
