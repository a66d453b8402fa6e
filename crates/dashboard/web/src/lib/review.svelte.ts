// Comments on the lines of a comparison of two commits. They outlive a reload, and belong to these commits alone.

export interface Comment {
  path: string;
  side: 'old' | 'new';
  first: number;
  last: number;
  text: string;
}

const PREFIX = 'sprag-review:';
/** The most comparisons whose comments are kept. */
const MOST_KEPT = 50;

export class Review {
  all = $state<Comment[]>([]);
  #key: string;

  constructor(run: string, from: string, to: string) {
    this.#key = `${PREFIX}${run}:${from}:${to}`;
    try {
      this.all = JSON.parse(localStorage.getItem(this.#key) ?? '[]') as Comment[];
    } catch {
      this.all = [];
    }
  }

  of(path: string): Comment[] {
    return this.all.filter((comment) => comment.path === path);
  }

  put(comment: Comment): void {
    const same = (one: Comment) => one.path === comment.path && one.side === comment.side && one.first === comment.first && one.last === comment.last;
    this.all = [...this.all.filter((one) => !same(one)), ...(comment.text.trim() ? [comment] : [])];
    this.#keep();
  }

  clear(): void {
    this.all = [];
    this.#keep();
  }

  /** The comments as a person or an agent reads them: a place, then the text. */
  text(): string {
    const lines = (one: Comment) => (one.first === one.last ? `${one.first}` : `${one.first}-${one.last}`);
    const removed = (one: Comment) => (one.side === 'old' ? ' (removed)' : '');
    return [...this.all]
      .sort((a, b) => a.path.localeCompare(b.path) || a.first - b.first)
      .map((one) => `${one.path}:${lines(one)}${removed(one)}\n${one.text.trim()}`)
      .join('\n\n');
  }

  #keep(): void {
    try {
      if (this.all.length === 0) localStorage.removeItem(this.#key);
      else localStorage.setItem(this.#key, JSON.stringify(this.all));
      const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX) && key !== this.#key);
      keys.slice(0, Math.max(0, keys.length - MOST_KEPT)).forEach((key) => localStorage.removeItem(key));
    } catch {
      // Without storage the comments last as long as the page.
    }
  }
}
