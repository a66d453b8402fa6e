import { expect, test } from 'vitest';
import { diagram } from './diagram';

const life = {
  entity: 'door',
  statuses: ['closed', 'open', 'gone'],
  terminal: ['gone'],
  rules: [
    { event: 'opened', who: ['person'], from: ['closed'], to: ['open'], unless_superseded: [] },
    { event: 'blown_open', who: ['wind'], from: ['closed'], to: ['open'], unless_superseded: [] },
    { event: 'shut', who: ['person'], from: ['open'], to: ['closed'], unless_superseded: [] },
    { event: 'removed', who: ['person'], from: ['closed', 'open'], to: ['gone'], unless_superseded: [] },
    { event: 'painted', who: ['person'], from: ['open'], to: ['open'], unless_superseded: [] },
  ],
};

test('statuses stand in columns, and every transition of the table is an arrow', () => {
  const drawn = diagram(life);
  const x = (id: string) => drawn.nodes.find((node) => node.id === id)!.x;
  expect(x('closed')).toBeLessThan(x('open'));
  expect(x('gone')).toBeGreaterThanOrEqual(x('open'));
  expect(drawn.arrows.map((arrow) => `${arrow.from}>${arrow.to}`).sort()).toEqual(['closed>gone', 'closed>open', 'open>closed', 'open>gone', 'open>open']);
  expect(drawn.arrows.find((arrow) => arrow.from === 'closed' && arrow.to === 'open')?.events).toEqual(['opened', 'blown_open']);
  expect(drawn.arrows.every((arrow) => /^M[\d.-]+ [\d.-]+C/.test(arrow.path) && !arrow.path.includes('NaN'))).toBe(true);
  expect(drawn.nodes.every((node) => node.x >= 0 && node.x + node.width <= drawn.width && node.y >= 0)).toBe(true);
});

test('a table without rules is a picture without arrows', () => {
  expect(diagram({ entity: 'rock', statuses: ['there'], terminal: ['there'], rules: [] }).arrows).toEqual([]);
});
