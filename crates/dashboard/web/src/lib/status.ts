// Statuses as people see them: a shape, a word and a colour, never the colour alone.

export type Tone = 'good' | 'bad' | 'busy' | 'wait' | 'idle' | 'off';
export type Shape = 'check' | 'cross' | 'spin' | 'pause' | 'dot' | 'ring' | 'dash' | 'ask';

export interface Look {
  word: string;
  tone: Tone;
  shape: Shape;
}

const LOOKS: Record<string, Look> = {
  completed: { word: 'completed', tone: 'good', shape: 'check' },
  done: { word: 'done', tone: 'good', shape: 'check' },
  failed: { word: 'failed', tone: 'bad', shape: 'cross' },
  failing: { word: 'failing', tone: 'bad', shape: 'spin' },
  timed_out: { word: 'timed out', tone: 'bad', shape: 'cross' },
  abandoned: { word: 'lost', tone: 'bad', shape: 'cross' },
  error: { word: 'error', tone: 'bad', shape: 'cross' },
  lost: { word: 'lost', tone: 'bad', shape: 'cross' },
  running: { word: 'running', tone: 'busy', shape: 'spin' },
  claimed: { word: 'claimed', tone: 'busy', shape: 'spin' },
  provisioning: { word: 'provisioning', tone: 'busy', shape: 'spin' },
  destroying: { word: 'removing', tone: 'busy', shape: 'spin' },
  cancelling: { word: 'cancelling', tone: 'off', shape: 'spin' },
  pending: { word: 'pending', tone: 'wait', shape: 'pause' },
  queued: { word: 'queued', tone: 'wait', shape: 'pause' },
  requested: { word: 'requested', tone: 'wait', shape: 'pause' },
  scheduling: { word: 'scheduling', tone: 'wait', shape: 'pause' },
  scheduled: { word: 'queued', tone: 'wait', shape: 'pause' },
  waiting: { word: 'not yet', tone: 'idle', shape: 'ring' },
  ready: { word: 'ready', tone: 'wait', shape: 'dot' },
  // Rules, accounts, conversations, pipelines and environments.
  active: { word: 'active', tone: 'good', shape: 'dot' },
  free: { word: 'free', tone: 'good', shape: 'dot' },
  valid: { word: 'valid', tone: 'good', shape: 'dot' },
  here: { word: 'ready', tone: 'good', shape: 'dot' },
  idle: { word: 'idle', tone: 'idle', shape: 'ring' },
  created: { word: 'created', tone: 'wait', shape: 'pause' },
  paused: { word: 'paused', tone: 'wait', shape: 'pause' },
  held: { word: 'held', tone: 'wait', shape: 'pause' },
  probing: { word: 'probing', tone: 'busy', shape: 'spin' },
  broken: { word: 'broken', tone: 'bad', shape: 'cross' },
  retired: { word: 'retired', tone: 'off', shape: 'dash' },
  skipped: { word: 'skipped', tone: 'off', shape: 'dash' },
  cancelled: { word: 'cancelled', tone: 'off', shape: 'dash' },
  destroyed: { word: 'removed', tone: 'off', shape: 'dash' },
  online: { word: 'online', tone: 'good', shape: 'dot' },
  draining: { word: 'draining', tone: 'wait', shape: 'pause' },
  offline: { word: 'offline', tone: 'off', shape: 'dash' },
  gone: { word: 'gone', tone: 'off', shape: 'dash' },
  open: { word: 'open', tone: 'busy', shape: 'dot' },
  closed: { word: 'closed', tone: 'off', shape: 'dash' },
};

const WAITS: Record<string, Look> = {
  person: { word: 'needs you', tone: 'wait', shape: 'ask' },
  task: { word: 'waits for a claim', tone: 'wait', shape: 'pause' },
  signal: { word: 'waits for a signal', tone: 'wait', shape: 'pause' },
  group: { word: 'waits for its group', tone: 'wait', shape: 'pause' },
  worker: { word: 'waits for a worker', tone: 'wait', shape: 'pause' },
  time: { word: 'waits for a time', tone: 'wait', shape: 'pause' },
};

/** Returns the look of a status, and of what it waits for. */
export function look(status: string | null | undefined, waitingFor?: string | null, notRun?: boolean | null): Look {
  if (notRun) return { word: 'not run', tone: 'off', shape: 'dash' };
  const wait = waitingFor ? WAITS[waitingFor] : undefined;
  if (wait) return wait;
  const word = status ?? 'unknown';
  return LOOKS[word] ?? { word, tone: 'idle', shape: 'ring' };
}

export const RUN_STATUSES = ['queued', 'running', 'failing', 'cancelling', 'completed', 'failed', 'cancelled'];

export function isOver(status: string | undefined): boolean {
  return status === 'completed' || status === 'failed' || status === 'cancelled';
}

/** Whether a step has its last status. */
export function isSettled(status: string | undefined): boolean {
  return status === 'done' || status === 'failed' || status === 'skipped' || status === 'cancelled';
}
