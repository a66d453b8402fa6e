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
  generation: number;
  changed_ms: number;
  looks_ms?: number | null;
  waits_for?: string | null;
  refs?: Record<string, string> | null;
  refused?: { count: number; reason: string; last_ms: number } | null;
}
export interface Explanation {
  rule: string;
  status: string;
  reason: string;
  watched: boolean;
}
export interface EventDetail {
  id: string;
  rule: string;
  kind: string;
  key: string;
  received_ms: number;
  event: unknown;
  decisions: Decision[];
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
  tokens?: number | null;
  cost_usd?: number | null;
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

/** Returns the tokens and the price of agents in words; nothing if neither is known. */
export function used(tokens: number | null | undefined, cost: number | null | undefined): string {
  const count = typeof tokens === 'number' ? `${tokens < 10_000 ? tokens : `${Math.round(tokens / 1000)}k`} tokens` : '';
  const price = typeof cost === 'number' ? `$${cost < 0.01 ? cost.toFixed(3) : cost.toFixed(2)}` : '';
  return [count, price].filter(Boolean).join(' · ');
}

/** Returns the same for the result of an execution. */
export function usedBy(result: unknown): string {
  const outputs = (result as { outputs?: { tokens?: number; cost_usd?: number | null } } | null)?.outputs;
  return outputs && 'session' in outputs ? used(outputs.tokens, outputs.cost_usd) : '';
}
