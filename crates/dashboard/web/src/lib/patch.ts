// A patch as git prints it, by files and hunks.

export interface PatchLine {
  kind: 'add' | 'del' | 'ctx' | 'note';
  old?: number;
  new?: number;
  text: string;
}

export interface Hunk {
  head: string;
  lines: PatchLine[];
}

export interface PatchFile {
  path: string;
  from?: string;
  change: 'added' | 'removed' | 'renamed' | 'changed';
  binary: boolean;
  added: number;
  removed: number;
  hunks: Hunk[];
}

/** Parses a patch. Lines that it does not understand are left out, never shown in a wrong place. */
export function parsePatch(text: string): PatchFile[] {
  const files: PatchFile[] = [];
  let file: PatchFile | undefined;
  let hunk: Hunk | undefined;
  let [before, after, oldLeft, newLeft] = [0, 0, 0, 0];
  for (const line of text.split('\n')) {
    if (hunk && (oldLeft > 0 || newLeft > 0)) {
      const sign = line[0];
      const rest = line.slice(1);
      if (sign === '+') {
        hunk.lines.push({ kind: 'add', new: after++, text: rest });
        newLeft--;
        file!.added++;
        continue;
      }
      if (sign === '-') {
        hunk.lines.push({ kind: 'del', old: before++, text: rest });
        oldLeft--;
        file!.removed++;
        continue;
      }
      if (sign === ' ' || line === '') {
        hunk.lines.push({ kind: 'ctx', old: before++, new: after++, text: rest });
        oldLeft--;
        newLeft--;
        continue;
      }
    }
    if (line.startsWith('diff --git ')) {
      file = { path: pathOf(line), change: 'changed', binary: false, added: 0, removed: 0, hunks: [] };
      files.push(file);
      hunk = undefined;
    } else if (!file) {
      continue;
    } else if (line.startsWith('\\') && hunk) {
      hunk.lines.push({ kind: 'note', text: line.slice(2) });
    } else if (line.startsWith('@@ ')) {
      const found = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/.exec(line);
      if (!found) continue;
      [before, after] = [Number(found[1]), Number(found[3])];
      [oldLeft, newLeft] = [Number(found[2] ?? 1), Number(found[4] ?? 1)];
      hunk = { head: found[5] ?? '', lines: [] };
      file.hunks.push(hunk);
    } else if (line.startsWith('new file')) file.change = 'added';
    else if (line.startsWith('deleted file')) file.change = 'removed';
    else if (line.startsWith('rename from ')) {
      file.change = 'renamed';
      file.from = unquoted(line.slice(12));
    } else if (line.startsWith('rename to ')) file.path = unquoted(line.slice(10));
    else if (line.startsWith('+++ ') && !line.startsWith('+++ /dev/null')) file.path = side(line.slice(4));
    else if (line.startsWith('--- ') && !line.startsWith('--- /dev/null') && file.change === 'removed') {
      file.path = side(line.slice(4));
    } else if (line.startsWith('Binary files ') || line.startsWith('GIT binary patch')) file.binary = true;
  }
  return files;
}

function side(text: string): string {
  const name = unquoted(text.replace(/\t$/, ''));
  return name.replace(/^[ab]\//, '');
}

function unquoted(text: string): string {
  if (!text.startsWith('"')) return text;
  try {
    const bytes: number[] = [];
    const inside = text.slice(1, text.lastIndexOf('"'));
    const named: Record<string, number> = { n: 10, t: 9, r: 13, '"': 34, '\\': 92, a: 7, b: 8, f: 12, v: 11 };
    const encoder = new TextEncoder();
    for (let at = 0; at < inside.length; at++) {
      const c = inside[at]!;
      if (c !== '\\') {
        bytes.push(...encoder.encode(c));
        continue;
      }
      const octal = /^[0-7]{3}/.exec(inside.slice(at + 1));
      if (octal) {
        bytes.push(parseInt(octal[0], 8));
        at += 3;
      } else {
        bytes.push(named[inside[at + 1] ?? ''] ?? 63);
        at += 1;
      }
    }
    return new TextDecoder().decode(new Uint8Array(bytes));
  } catch {
    return text;
  }
}

function pathOf(line: string): string {
  const rest = line.slice('diff --git '.length);
  const half = /^"?a\/(.*?)"? "?b\//.exec(rest);
  return half?.[1] ?? rest;
}
