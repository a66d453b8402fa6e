// The critical path of a run: the chain of steps that decided when it ended.
import type { Graph, Step } from './api';
import { ms } from './time.svelte';

/** Returns the ids of the steps of the critical path, first to last: from the step that ended last, back through the need that ended last. */
export function criticalPath(nodes: Pick<Graph['steps'][number], 'id' | 'needs'>[], steps: Pick<Step, 'id' | 'started_at' | 'ended_at'>[]): string[] {
  // A step that has not ended counts as the last of all.
  const ends = new Map(steps.flatMap((step) => (step.started_at ? [[step.id, ms(step.ended_at) ?? Infinity] as const] : [])));
  const needs = new Map(nodes.map((node) => [node.id, node.needs]));
  const latest = (ids: readonly string[]) => ids.reduce<string | undefined>((best, id) => (ends.has(id) && (best === undefined || ends.get(id)! > ends.get(best)!) ? id : best), undefined);
  const path: string[] = [];
  for (let at = latest(nodes.map((node) => node.id)); at !== undefined && path.length <= nodes.length; at = latest(needs.get(at) ?? [])) path.unshift(at);
  return path;
}
