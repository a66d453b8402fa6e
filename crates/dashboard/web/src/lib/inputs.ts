// The inputs of a pipeline, and the fields of a question, as a form: what is typed becomes a value of the declared type, or a
// sentence about why not.
import type { Schemas } from './api';

export type Input = Schemas['InputView'];

/** Returns the fields of a question in the form of inputs. */
export function fieldsOf(gate: Schemas['GateView']): Input[] {
  const number = (value: unknown) => (typeof value === 'number' ? value : undefined);
  return (gate.fields ?? []).map((field) => ({ ...field, allowed: field.enum ?? [], min: number(field.min), max: number(field.max) }));
}

/**
 * Returns the values of a form. An untouched field is left out, so that its default applies. `strict` asks for what is
 * required. Throws a sentence.
 */
export function valuesOf(inputs: Input[], texts: Record<string, string>, strict = true): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  for (const input of inputs) {
    const required = strict && input.required;
    if (texts[input.name] === undefined && !required) continue;
    const value = valueOf({ ...input, required }, texts[input.name] ?? initial(input));
    if (value !== undefined) values[input.name] = value;
  }
  return values;
}

/** Returns the text that a field starts with. */
export function initial(input: Input): string {
  const value = input.default;
  if (value === undefined || value === null) return '';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Returns the value that a text means; nothing for an empty one, so that the default applies. Throws a sentence. */
export function valueOf(input: Input, text: string): unknown {
  const wrong = (what: string) => new Error(`${input.name} must be ${what}.`);
  if (input.type === 'string') {
    if (text !== '') return text;
    if (input.required) throw wrong('set');
    return undefined;
  }
  const trimmed = text.trim();
  if (trimmed === '') {
    if (input.required) throw wrong('set');
    return undefined;
  }
  if (input.type === 'integer' || input.type === 'number') {
    const number = Number(trimmed);
    if (Number.isNaN(number) || (input.type === 'integer' && !Number.isInteger(number))) throw wrong(input.type === 'integer' ? 'a whole number' : 'a number');
    return number;
  }
  if (input.type === 'boolean') {
    if (trimmed !== 'true' && trimmed !== 'false') throw wrong('true or false');
    return trimmed === 'true';
  }
  let value: unknown;
  try {
    value = JSON.parse(trimmed);
  } catch {
    throw wrong(input.type === 'list' ? 'a list in JSON, such as ["a", "b"]' : 'an object in JSON, such as {"a": 1}');
  }
  if (input.type === 'list' && !Array.isArray(value)) throw wrong('a list in JSON');
  if (input.type === 'object' && (typeof value !== 'object' || value === null || Array.isArray(value))) throw wrong('an object in JSON');
  return value;
}

/** Returns a few words about the values that an input accepts. */
export function bounds(input: Input): string {
  const of = input.type === 'string' ? ' characters' : input.type === 'list' ? ' items' : '';
  // That a text is text need not be said.
  const words: string[] = input.type === 'string' || input.allowed.length ? [] : [input.type];
  if (typeof input.min === 'number') words.push(`at least ${input.min}${of}`);
  if (typeof input.max === 'number') words.push(`at most ${input.max}${of}`);
  if (input.pattern) words.push(`fits ${input.pattern}`);
  return words.join(', ');
}
