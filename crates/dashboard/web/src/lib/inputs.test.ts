import { expect, test } from 'vitest';
import { bounds, fieldsOf, initial, valueOf, valuesOf, type Input } from './inputs';

const input = (type: string, more: Partial<Input> = {}) => ({ name: 'x', type, required: false, allowed: [], ...more }) as Input;

test('what is typed becomes a value of the declared type', () => {
  expect(valueOf(input('string'), ' a ')).toBe(' a ');
  expect(valueOf(input('integer'), ' 12 ')).toBe(12);
  expect(valueOf(input('number'), '1.5')).toBe(1.5);
  expect(valueOf(input('boolean'), 'false')).toBe(false);
  expect(valueOf(input('list'), '[1, "a"]')).toEqual([1, 'a']);
  expect(valueOf(input('object'), '{"a": 1}')).toEqual({ a: 1 });
  expect(valueOf(input('integer'), '')).toBeUndefined();
});

test('what does not fit is a sentence', () => {
  for (const [type, text] of [['integer', '1.5'], ['number', 'x'], ['boolean', 'yes'], ['list', '{}'], ['object', '[]'], ['list', 'a, b']] as const) {
    expect(() => valueOf(input(type), text)).toThrow(/^x must be /);
  }
  expect(() => valueOf(input('integer', { required: true }), ' ')).toThrow('x must be set.');
});

test('defaults and bounds are shown', () => {
  expect(initial(input('list', { default: [1] as never }))).toBe('[1]');
  expect(initial(input('string', { default: 'here' as never }))).toBe('here');
  expect(bounds(input('string', { min: 2, pattern: '[a-z]+' }))).toBe('at least 2 characters, fits [a-z]+');
});

test('a form leaves out what was not touched, and asks for what is required', () => {
  const inputs = [input('string', { name: 'a', required: true }), input('integer', { name: 'b', default: 5 as never })];
  expect(valuesOf(inputs, { a: 'x' })).toEqual({ a: 'x' });
  expect(valuesOf(inputs, { a: 'x', b: '7' })).toEqual({ a: 'x', b: 7 });
  expect(() => valuesOf([input('integer', { name: 'b', required: true })], {})).toThrow('b must be set.');
  expect(() => valuesOf(inputs, { b: '7' })).toThrow('a must be set.');
  // An answer that sends a run back needs no form.
  expect(valuesOf([input('integer', { name: 'b', required: true })], {}, false)).toEqual({});
  expect(fieldsOf({ fields: [{ name: 'p', type: 'string', required: true, enum: ['x', 'y'] }] } as never)[0]?.allowed).toEqual(['x', 'y']);
});
