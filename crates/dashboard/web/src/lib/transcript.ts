// The log of an agent step as a conversation. The worker writes notes with `#`, tool calls with `>`, and what a tool printed
// indented by two spaces; everything else is what the agent said.
import { plain } from './ansi';

export interface Block {
  kind: 'text' | 'tool' | 'note';
  /** The tool and what it was asked to do; empty for the other kinds. */
  head: string;
  lines: string[];
}

export function blocks(lines: readonly string[]): Block[] {
  const found: Block[] = [];
  for (const raw of lines) {
    const line = plain(raw);
    const last = found[found.length - 1];
    if (line.startsWith('> ')) found.push({ kind: 'tool', head: line.slice(2), lines: [] });
    else if (line.startsWith('  ') && last?.kind === 'tool') last.lines.push(line.slice(2));
    else {
      const kind = line.startsWith('# ') || line.startsWith('sprag: ') ? 'note' : 'text';
      const text = line.startsWith('# ') ? line.slice(2) : line;
      if (last?.kind === kind) last.lines.push(text);
      else if (text.trim() !== '') found.push({ kind, head: '', lines: [text] });
    }
  }
  return found;
}
