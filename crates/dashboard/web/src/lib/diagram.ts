// A picture of a lifecycle: its statuses in columns by their distance from the first one, and an arrow for each pair of
// statuses that some event connects. Pure, so that it can be tested without a page.
import type { Schemas } from './api';

export interface Node {
  id: string;
  x: number;
  y: number;
  width: number;
  final: boolean;
}
export interface Arrow {
  from: string;
  to: string;
  events: string[];
  path: string;
}
export interface Diagram {
  nodes: Node[];
  arrows: Arrow[];
  width: number;
  height: number;
}

export const NODE_HEIGHT = 30;
const CHARACTER = 7.6;
const COLUMN_GAP = 64;
const ROW_GAP = 26;
const MARGIN = 26;

export function diagram(life: Schemas['LifecycleView']): Diagram {
  const pairs = new Map<string, Arrow>();
  for (const rule of life.rules) {
    // An event that creates an entity has no status before it.
    for (const from of rule.from) {
      for (const to of rule.to) {
        const key = `${from} ${to}`;
        const known = pairs.get(key);
        if (known) known.events.push(rule.event);
        else pairs.set(key, { from, to, events: [rule.event], path: '' });
      }
    }
  }
  const arrows = [...pairs.values()];
  // Columns: the shortest way from the first status; what is not reached that way comes last.
  const column = new Map<string, number>();
  const first = life.statuses[0];
  let wave = first ? [first] : [];
  for (let at = 0; wave.length; at++) {
    for (const id of wave) column.set(id, at);
    wave = [...new Set(arrows.filter((one) => wave.includes(one.from) && !column.has(one.to)).map((one) => one.to))];
  }
  const last = Math.max(0, ...column.values());
  for (const id of life.statuses) if (!column.has(id)) column.set(id, last);
  // Final statuses stand at the right, so that arrows lead there.
  const end = Math.max(last, 1);
  for (const id of life.terminal) column.set(id, life.terminal.length === life.statuses.length ? (column.get(id) ?? 0) : Math.max(end, (column.get(id) ?? 0)));
  const columns = new Map<number, string[]>();
  for (const id of life.statuses) columns.set(column.get(id)!, [...(columns.get(column.get(id)!) ?? []), id]);
  const rows = Math.max(1, ...[...columns.values()].map((ids) => ids.length));
  const height = rows * NODE_HEIGHT + (rows - 1) * ROW_GAP + 2 * MARGIN;
  const nodes: Node[] = [];
  let x = MARGIN;
  for (const at of [...columns.keys()].sort((a, b) => a - b)) {
    const ids = columns.get(at)!;
    const width = Math.max(...ids.map((id) => id.length)) * CHARACTER + 26;
    const used = ids.length * NODE_HEIGHT + (ids.length - 1) * ROW_GAP;
    ids.forEach((id, nth) => nodes.push({ id, x, y: (height - used) / 2 + nth * (NODE_HEIGHT + ROW_GAP), width, final: life.terminal.includes(id) }));
    x += width + COLUMN_GAP;
  }
  const byId = new Map(nodes.map((node) => [node.id, node]));
  for (const arrow of arrows) {
    const [from, to] = [byId.get(arrow.from), byId.get(arrow.to)];
    if (from && to) arrow.path = way(from, to);
  }
  return { nodes, arrows: arrows.filter((one) => one.path), width: x - COLUMN_GAP + MARGIN, height };
}

/** Returns the path of an arrow: forwards as a curve between the sides, backwards and within a column around them. */
function way(from: Node, to: Node): string {
  const middle = (node: Node) => node.y + NODE_HEIGHT / 2;
  const n = (value: number) => Math.round(value * 10) / 10;
  if (from.id === to.id) {
    const [x, y] = [from.x + from.width / 2, from.y];
    return `M${n(x - 10)} ${n(y)}C${n(x - 14)} ${n(y - 20)} ${n(x + 14)} ${n(y - 20)} ${n(x + 10)} ${n(y)}`;
  }
  if (to.x > from.x) {
    const [x1, y1, x2, y2] = [from.x + from.width, middle(from), to.x, middle(to)];
    const bend = (x2 - x1) / 2;
    return `M${n(x1)} ${n(y1)}C${n(x1 + bend)} ${n(y1)} ${n(x2 - bend)} ${n(y2)} ${n(x2 - 6)} ${n(y2)}`;
  }
  if (to.x === from.x) {
    const x = from.x + from.width / 2;
    const down = to.y > from.y;
    const [y1, y2] = down ? [from.y + NODE_HEIGHT, to.y - 6] : [from.y, to.y + NODE_HEIGHT + 6];
    const near = Math.abs(to.y - from.y) <= NODE_HEIGHT + ROW_GAP + 1;
    const side = near ? (down ? 8 : -8) : (from.width / 2 + 16) * (down ? 1 : -1);
    return `M${n(x + (down ? 8 : -8))} ${n(y1)}C${n(x + side)} ${n(y1 + (down ? 10 : -10))} ${n(x + side)} ${n(y2 - (down ? 10 : -10))} ${n(x + (down ? 8 : -8))} ${n(y2)}`;
  }
  // Back: below the nodes.
  const [x1, x2] = [from.x + from.width / 2, to.x + to.width / 2];
  const [y1, y2] = [from.y + NODE_HEIGHT, to.y + NODE_HEIGHT + 6];
  const low = Math.max(y1, y2) + 22;
  return `M${n(x1)} ${n(y1)}C${n(x1)} ${n(low)} ${n(x2)} ${n(low)} ${n(x2)} ${n(y2)}`;
}
