import { expect, test } from 'vitest';
import { ruleUrl, threadUrl } from './rules';

test('names become paths, whatever they contain', () => {
  expect(ruleUrl('nightly/at-noon')).toBe('/v1/rules/nightly/at-noon');
  expect(ruleUrl('nightly/a/b', 'fire')).toBe('/v1/rules/nightly/a%2Fb/fire');
  expect(threadUrl({ run: 'r 1', step: 'work[2]' }, 'stop')).toBe('/v1/runs/r%201/steps/work%5B2%5D/thread/stop');
});
