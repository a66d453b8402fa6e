// Text with terminal escapes, as runs of plain text with classes. Only colours and weight are kept: nothing here makes
// markup, moves the cursor, or opens a link.

export interface Piece {
  text: string;
  cls: string;
}

interface Style {
  fg?: string;
  bg?: string;
  bold?: boolean;
  dim?: boolean;
  italic?: boolean;
  underline?: boolean;
  inverse?: boolean;
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

// A control sequence, a command to the terminal with its end, a character set, or any other escape.
// eslint-disable-next-line no-control-regex
const ESCAPE = /\u001b(?:\[([0-9:;<=>?]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[()*+][\s\S]|[\s\S])|[\u0000-\u0008\u000b-\u001a\u001c-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\u200e\u200f]/g;

/** Splits a line into pieces of one style. Control characters and changes of direction become visible signs. */
export function pieces(line: string): Piece[] {
  const text = folded(line);
  const found: Piece[] = [];
  let style: Style = {};
  let at = 0;
  const push = (part: string) => {
    if (!part) return;
    const cls = classes(style);
    const last = found[found.length - 1];
    if (last && last.cls === cls) last.text += part;
    else found.push({ text: part, cls });
  };
  for (const match of text.matchAll(ESCAPE)) {
    push(text.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[0][0] !== '\u001b') push(visible(match[0]));
    else if (match[2] === 'm') style = changed(style, match[1] ?? '');
  }
  push(text.slice(at));
  return found;
}

/** Returns a line without escapes, as a search sees it. */
export function plain(line: string): string {
  return pieces(line)
    .map((piece) => piece.text)
    .join('');
}

/** Returns several lines without escapes. */
export function plainLines(text: string): string {
  return text.split('\n').map(plain).join('\n');
}

/** Keeps what a terminal would show of a line that a progress bar overwrites. */
function folded(line: string): string {
  const text = line.endsWith('\r') ? line.slice(0, -1) : line;
  const last = text.lastIndexOf('\r');
  return last < 0 ? text : text.slice(last + 1);
}

function visible(c: string): string {
  const code = c.charCodeAt(0);
  return code < 0x20 ? String.fromCharCode(0x2400 + code) : '\ufffd';
}

function classes(style: Style): string {
  const { fg, bg } = style.inverse ? { fg: style.bg ?? 'inv', bg: style.fg ?? 'inv' } : style;
  const words = [
    fg && `fg-${fg}`,
    bg && `bg-${bg}`,
    style.bold && 'b',
    style.dim && 'd',
    style.italic && 'i',
    style.underline && 'u',
  ];
  return words.filter(Boolean).join(' ');
}

function changed(before: Style, parameters: string): Style {
  const codes = parameters.split(/[;:]/).map((code) => (code === '' ? 0 : Number(code)));
  let style = { ...before };
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at]!;
    if (code === 0) style = {};
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code === 27) style.inverse = false;
    else if (code >= 30 && code <= 37) style.fg = NAMES[code - 30];
    else if (code === 39) style.fg = undefined;
    else if (code >= 40 && code <= 47) style.bg = NAMES[code - 40];
    else if (code === 49) style.bg = undefined;
    else if (code >= 90 && code <= 97) style.fg = NAMES[code - 90];
    else if (code >= 100 && code <= 107) style.bg = NAMES[code - 100];
    else if (code === 38 || code === 48) {
      const key = code === 38 ? 'fg' : 'bg';
      if (codes[at + 1] === 5) {
        style[key] = nearest256(codes[at + 2] ?? 7);
        at += 2;
      } else if (codes[at + 1] === 2) {
        style[key] = nearest(codes[at + 2] ?? 0, codes[at + 3] ?? 0, codes[at + 4] ?? 0);
        at += 4;
      }
    }
  }
  return style;
}

/** The page has eight colours, which both themes show readably. */
function nearest(r: number, g: number, b: number): string {
  const high = Math.max(r, g, b);
  const bit = (value: number) => (value > 64 && value * 1.6 > high ? 1 : 0);
  return NAMES[bit(r) | (bit(g) << 1) | (bit(b) << 2)] ?? 'white';
}

function nearest256(code: number): string {
  if (code < 16) return NAMES[code % 8] ?? 'white';
  if (code >= 232) return code < 244 ? 'black' : 'white';
  const n = code - 16;
  const level = (value: number) => (value === 0 ? 0 : 55 + value * 40);
  return nearest(level(Math.floor(n / 36)), level(Math.floor(n / 6) % 6), level(n % 6));
}
