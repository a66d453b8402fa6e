// Rules, the decisions about their events, and threads of agents, as the API describes them.

export interface Decision {
  event: string;
  kind: string;
  key: string;
  status: string;
  reason: string | null;
  run: string | null;
  at_ms: number;
}
export interface Delivery extends Decision {
  rule: string;
}
export interface Rule {
  name: string;
  status: string;
  reason: string | null;
  kind: string | null;
  file: string | null;
  project: string | null;
  url?: string | null;
  next: { time: string; zone: string; fires_ms: number }[];
  decisions: Decision[];
  run: string | null;
  missed: number;
}
export interface Tested {
  decision: string;
  inputs: Record<string, unknown> | null;
  reason: string | null;
}
export interface Thread {
  thread: string;
  run: string;
  step: string;
  pipeline: string;
  agent: string;
  status: string;
  turns: number;
  held_by?: string | null;
}

/** The path of a rule: its name is that of its pipeline, a slash, and its id. */
export function ruleUrl(name: string, verb = ''): string {
  const at = name.indexOf('/');
  const parts = at < 0 ? [name] : [name.slice(0, at), name.slice(at + 1)];
  return `/v1/rules/${parts.map(encodeURIComponent).join('/')}${verb ? `/${verb}` : ''}`;
}

export function threadUrl(thread: Pick<Thread, 'run' | 'step'>, verb: string): string {
  return `/v1/runs/${encodeURIComponent(thread.run)}/steps/${encodeURIComponent(thread.step)}/thread/${verb}`;
}
