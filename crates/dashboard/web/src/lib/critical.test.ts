import { expect, test } from 'vitest';
import { criticalPath } from './critical';

const at = (second: number) => new Date(second * 1000).toISOString();
const nodes = [
  { id: 'a', needs: [] },
  { id: 'fast', needs: ['a'] },
  { id: 'slow', needs: ['a'] },
  { id: 'end', needs: ['fast', 'slow'] },
];

test('the path goes through the need that ended last', () => {
  const steps = [
    { id: 'a', started_at: at(0), ended_at: at(1) },
    { id: 'fast', started_at: at(1), ended_at: at(2) },
    { id: 'slow', started_at: at(1), ended_at: at(9) },
    { id: 'end', started_at: at(9), ended_at: at(10) },
  ];
  expect(criticalPath(nodes, steps)).toEqual(['a', 'slow', 'end']);
});

test('a step that still runs is the last one, and steps that never began are on no path', () => {
  const steps = [{ id: 'a', started_at: at(0), ended_at: at(1) }, { id: 'fast', started_at: at(1), ended_at: null }, { id: 'slow', started_at: null, ended_at: null }];
  expect(criticalPath(nodes, steps)).toEqual(['a', 'fast']);
  expect(criticalPath([], [])).toEqual([]);
});
