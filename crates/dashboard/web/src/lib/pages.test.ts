import { expect, test } from 'vitest';
import { pageName } from './pages';

test('an address has one page', () => {
  expect([pageName('/'), pageName('/runs'), pageName('/runs/a'), pageName('/runs/a/steps/b%2Fc')]).toEqual(['Now', 'Runs', 'Run', 'Log']);
  expect([pageName('/nowhere'), pageName('/runs/a/b'), pageName('/runs/')]).toEqual([undefined, undefined, 'Run']);
});
