// Everything that a person can do with a run or a question. Each action is described before it happens, and the server
// decides: its refusal is shown as it says it.
import { client, sentence, told, type Gate, type RunDetail } from './api';
import { go, runUrl } from './router.svelte';

export interface Wanted {
  title: string;
  says: string[];
  list?: string[];
  button: string;
  danger?: boolean;
  command?: string;
  asks?: string;
  rows?: number;
  value?: string;
  required?: boolean;
  /** Further fields, for what one text cannot say. */
  fields?: Field[];
  act: (text: string, fields: Record<string, string>) => Promise<unknown>;
}

export interface Field {
  name: string;
  label: string;
  rows?: number;
  value?: string;
  choices?: string[];
  required?: boolean;
}

export const dialog = $state<{ open: Wanted | undefined }>({ open: undefined });
export const toasts = $state<{ list: { id: number; text: string; bad: boolean }[] }>({ list: [] });
let nextToast = 0;

export function ask(wanted: Wanted): void {
  dialog.open = wanted;
}

export function closeDialog(): void {
  dialog.open = undefined;
}

/** Says something in a corner. Failures stay until they are read. */
export function say(text: string, bad = false): void {
  const id = nextToast++;
  toasts.list.push({ id, text, bad });
  if (!bad) setTimeout(() => unsay(id), 5_000);
}

export function unsay(id: number): void {
  toasts.list = toasts.list.filter((toast) => toast.id !== id);
}

/** Returns the steps that run again when `from` does: itself and all that need it, directly or not. */
export function dependents(from: string, needs: Map<string, string[]>): string[] {
  const again = new Set([from]);
  let grew = true;
  while (grew) {
    grew = false;
    for (const [step, before] of needs) {
      if (!again.has(step) && before.some((need) => again.has(need))) {
        again.add(step);
        grew = true;
      }
    }
  }
  return [...needs.keys()].filter((step) => again.has(step));
}

async function needsOf(run: string): Promise<Map<string, string[]>> {
  const { data } = await told(client.GET('/v1/runs/{run}/graph', { params: { path: { run } } }));
  return new Map(data.steps.map((step) => [step.id, step.needs]));
}

export function cancel(run: RunDetail): void {
  const running = run.steps.filter((step) => step.status === 'running' || step.status === 'pending');
  const left = run.steps.filter((step) => step.status === 'waiting').length;
  ask({
    title: `Cancel run ${run.id}?`,
    says: [
      running.length ? 'These steps are stopped:' : 'No step is running.',
      ...(left ? [`${left} further step${left === 1 ? '' : 's'} will not run, except those with \`always\`.`] : []),
    ],
    list: running.map((step) => step.id),
    button: 'Cancel run',
    danger: true,
    command: `sprag cancel ${run.id}`,
    act: async () => {
      await told(client.POST('/v1/runs/{run}/cancel', { params: { path: { run: run.id } } }));
      say(`Run ${run.id} is being cancelled.`);
    },
  });
}

export async function retry(run: RunDetail, step?: string): Promise<void> {
  const needs = await needsOf(run.id);
  const failed = run.steps.filter((one) => one.status === 'failed').map((one) => one.id);
  const from = step ? [step] : failed.map((id) => id.replace(/\[\d+\]$/, ''));
  const again = new Set(from.flatMap((id) => dependents(id, needs)));
  ask({
    title: step ? `Retry ${step} of run ${run.id}?` : `Retry what failed in run ${run.id}?`,
    says: ['These steps run again; the results of all others are kept:'],
    list: [...needs.keys()].filter((id) => again.has(id)),
    button: 'Retry',
    command: `sprag retry ${run.id}${step ? ` --step ${step}` : ''}`,
    act: async () => {
      await told(client.POST('/v1/runs/{run}/retry', { params: { path: { run: run.id } }, body: step ? { step } : {} }));
      say(`Run ${run.id} continues.`);
    },
  });
}

export function resume(run: RunDetail): void {
  const left = run.steps.filter((step) => step.status !== 'done' && step.status !== 'skipped');
  ask({
    title: `Resume run ${run.id}?`,
    says: ['Finished steps are kept. These run, or run again:'],
    list: left.map((step) => step.id),
    button: 'Resume',
    command: `sprag resume ${run.id}`,
    act: async () => {
      await told(client.POST('/v1/runs/{run}/resume', { params: { path: { run: run.id } } }));
      say(`Run ${run.id} continues.`);
    },
  });
}

export async function rewind(run: RunDetail, step: string): Promise<void> {
  const again = dependents(step, await needsOf(run.id));
  ask({
    title: `Rewind run ${run.id} to ${step}?`,
    says: [
      `${again.length} step${again.length === 1 ? '' : 's'} run again, and their results are replaced.`,
      `The files of its worktree become what they were before ${step}.`,
    ],
    list: again,
    button: 'Rewind',
    danger: true,
    command: `sprag rewind ${run.id} --to ${step}`,
    act: async () => {
      await told(client.POST('/v1/runs/{run}/rewind', { params: { path: { run: run.id } }, body: { to: step } }));
      say(`Run ${run.id} continues from ${step}.`);
    },
  });
}

export async function fork(run: RunDetail, step: string): Promise<void> {
  const needs = await needsOf(run.id);
  ask({
    title: `Fork run ${run.id} after ${step}?`,
    says: [`A new run starts with a copy of the results and files up to ${step}. Run ${run.id} stays as it is.`],
    list: dependents(step, needs).slice(1),
    button: 'Fork',
    command: `sprag fork ${run.id} --from ${step}`,
    act: async () => {
      const { data } = await told(client.POST('/v1/runs/{run}/fork', { params: { path: { run: run.id } }, body: { from: step } }));
      go(runUrl(data.id));
      say(`Run ${data.id} was started.`);
    },
  });
}

export function signal(run: string): void {
  ask({
    title: `Send a signal to run ${run}`,
    says: ['A step that waits for it continues. A signal for a later step is kept.'],
    fields: [
      { name: 'name', label: 'Name', required: true },
      { name: 'data', label: 'Data as JSON (optional)', rows: 4 },
    ],
    button: 'Send',
    command: `sprag signal ${run} NAME`,
    act: async (_, fields) => {
      const name = (fields.name ?? '').trim();
      const json = (fields.data ?? '').trim();
      let payload;
      try {
        payload = json ? JSON.parse(json) : undefined;
      } catch {
        throw new Error('The data must be JSON, such as {"ok": true}.');
      }
      const { data } = await told(client.POST('/v1/runs/{run}/signals', { params: { path: { run } }, body: { name, payload } }));
      say(data.received_by ? `${data.received_by} received it.` : 'It is kept for a later step.');
    },
  });
}

export function skip(run: RunDetail, step: string, needs: Map<string, string[]>): void {
  const after = dependents(step, needs).slice(1);
  ask({
    title: `Skip ${step} of run ${run.id}?`,
    says: ['If it runs, it is stopped. It counts as done for the steps that need it' + (after.length ? ':' : '.')],
    list: after,
    button: 'Skip',
    danger: true,
    command: `sprag skip ${run.id} ${step}`,
    act: async () => {
      await told(client.POST('/v1/runs/{run}/skip', { params: { path: { run: run.id } }, body: { step } }));
      say(`${step} is skipped.`);
    },
  });
}

/** Ends the pause before the next try or round of a step. */
export async function tryNow(run: string, step: string): Promise<void> {
  await told(client.POST('/v1/runs/{run}/retry', { params: { path: { run } }, body: { step, now: true } }));
  say(`${step} starts now.`);
}

/** Answers a question. The last choice rejects, as on the command line. */
export async function answer(gate: Gate, choice: string, approved: boolean, comment: string, fields: Record<string, unknown> = {}): Promise<void> {
  // Among choices, the server knows which of them reject.
  const body = { approved: gate.choices.length ? null : approved, choice: gate.choices.length ? choice : null, comment: comment.trim() || null, fields: fields as Record<string, never> };
  await told(client.POST('/v1/gates/{id}/answer', { params: { path: { id: gate.id } }, body }));
  say(`${gate.step}: ${choice}.`);
}

/** Does one thing to each of these runs, one after the other, and says how many the server refused, and why the first one. */
export async function toAll(ids: string[], verb: 'cancel' | 'retry' | 'resume', done: string): Promise<void> {
  const refused: string[] = [];
  for (const run of ids) {
    try {
      const params = { path: { run } };
      if (verb === 'cancel') await told(client.POST('/v1/runs/{run}/cancel', { params }));
      else if (verb === 'retry') await told(client.POST('/v1/runs/{run}/retry', { params, body: {} }));
      else await told(client.POST('/v1/runs/{run}/resume', { params }));
    } catch (error) {
      refused.push(`${run}: ${sentence(error)}`);
    }
  }
  const count = ids.length - refused.length;
  say(`${count} run${count === 1 ? '' : 's'} ${done}.${refused.length ? ` ${refused.length} refused, such as ${refused[0]}` : ''}`, refused.length > 0);
}
