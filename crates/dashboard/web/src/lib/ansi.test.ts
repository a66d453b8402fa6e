import { expect, test } from 'vitest';
import { pieces, plain } from './ansi';

test('colours and weight become classes', () => {
  expect(pieces('\u001b[1;31mred\u001b[0m plain')).toEqual([
    { text: 'red', cls: 'fg-red b' },
    { text: ' plain', cls: '' },
  ]);
  expect(pieces('\u001b[38;5;196mx\u001b[39my')).toEqual([
    { text: 'x', cls: 'fg-red' },
    { text: 'y', cls: '' },
  ]);
  expect(pieces('\u001b[38;2;0;200;0mx')[0]?.cls).toBe('fg-green');
  expect(pieces('\u001b[7mx')[0]?.cls).toBe('fg-inv bg-inv');
});

test('hostile output stays text', () => {
  expect(plain('</script><img src=x onerror=alert(1)>')).toBe('</script><img src=x onerror=alert(1)>');
  expect(plain('\u001b]8;;https://evil.example\u0007click\u001b]8;;\u001b\\')).toBe('click');
  expect(plain('a\u0000b\u202ec')).toBe('a\u2400b\ufffdc');
  expect(plain('\u001b[2J\u001b[10;10Hx\u001b(B\u001b=')).toBe('x');
  expect(plain('\u001b[31')).toBe('31');
  expect(plain(`${'\u001b['.repeat(10_000)}m`).length).toBeLessThan(30_000);
});

test('a progress bar shows its last state', () => {
  expect(plain('10%\r50%\r100%')).toBe('100%');
  expect(plain('done\r')).toBe('done');
});
