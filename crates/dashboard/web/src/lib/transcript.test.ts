import { expect, test } from 'vitest';
import { blocks } from './transcript';

test('a log of an agent is text, tool calls with what they printed, and notes', () => {
  const found = blocks(['# claude, session 1 (new)', 'I look first.', '', 'Then I act.', '> Bash: ls', '  a.txt', '  b.txt', 'Done.', '# the turn has ended']);
  expect(found).toEqual([
    { kind: 'note', head: '', lines: ['claude, session 1 (new)'] },
    { kind: 'text', head: '', lines: ['I look first.', '', 'Then I act.'] },
    { kind: 'tool', head: 'Bash: ls', lines: ['a.txt', 'b.txt'] },
    { kind: 'text', head: '', lines: ['Done.'] },
    { kind: 'note', head: '', lines: ['the turn has ended'] },
  ]);
});

test('escapes and indented text of the agent itself are no tool output', () => {
  expect(blocks(['\u001b[31mred\u001b[0m', '  an indented line'])).toEqual([{ kind: 'text', head: '', lines: ['red', '  an indented line'] }]);
});
