// Times as people read them. One clock ticks for all of them, corrected by the server's.
import { settings } from './settings.svelte';

export const clock = $state({ now: Date.now() });
let offset = 0;

setInterval(() => {
  if (document.visibilityState === 'visible') clock.now = Date.now() + offset;
}, 1_000);

/** Takes the server's clock: durations stay right on a machine whose clock is wrong. */
export function setServerTime(ms: number): void {
  offset = ms - Date.now();
  clock.now = ms;
}

export function ms(at: string | null | undefined): number | undefined {
  if (!at) return undefined;
  const value = Date.parse(at);
  return Number.isNaN(value) ? undefined : value;
}

/** A span: `24 ms`, `12.3 s`, `4m 05s`, `2h 03m`, `3d 04h`. */
export function span(value: number | undefined): string {
  if (value === undefined) return '';
  const all = Math.max(0, value);
  const s = Math.floor(all / 1000);
  const two = (n: number) => String(n).padStart(2, '0');
  if (s < 1) return `${Math.round(all)} ms`;
  if (s < 60) return `${s}.${Math.floor((all % 1000) / 100)} s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${two(Math.floor((s % 3600) / 60))}m`;
  return `${Math.floor(s / 86400)}d ${two(Math.floor((s % 86400) / 3600))}h`;
}

/** A whole number of the largest unit, for lists: `now`, `12s`, `5m`, `3h`, `2d`. */
export function ago(at: string | null | undefined, now: number): string {
  const value = ms(at);
  if (value === undefined) return '';
  const s = Math.round((now - value) / 1000);
  if (s < 2) return 'now';
  if (s < 60) return `${s}s ago`;
  if (s < 3600) return `${Math.floor(s / 60)}m ago`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ago`;
  return `${Math.floor(s / 86400)}d ago`;
}

/** The time between two moments, the second being now if it is absent. */
export function between(from: string | null | undefined, to: string | null | undefined, now: number): string {
  const start = ms(from);
  if (start === undefined) return '';
  const end = ms(to);
  if (end !== undefined) return span(end - start);
  // What still grows is shown in whole seconds: digits that flicker are no information.
  const passed = Math.max(0, now - start);
  return passed < 60_000 ? `${Math.floor(passed / 1000)} s` : span(passed);
}

/** A moment, in the zone of the settings. */
export function moment(at: string | null | undefined, withDate = true): string {
  const value = ms(at);
  if (value === undefined) return '';
  const date = new Date(value);
  const iso = settings.zone === 'utc' ? date.toISOString() : new Date(value - date.getTimezoneOffset() * 60_000).toISOString();
  const time = iso.slice(11, 19);
  return withDate ? `${iso.slice(0, 10)} ${time}${settings.zone === 'utc' ? ' UTC' : ''}` : time;
}
