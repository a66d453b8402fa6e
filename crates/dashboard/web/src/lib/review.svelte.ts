// Comments on the lines of a comparison of two commits. The server keeps them, so every browser sees them, and they belong
// to these commits alone.
import { client, told, type Schemas } from './api';

export type Comment = Schemas['CommentView'];
/** A comment that is being written; `id` is that of the comment which it replaces. */
export type Draft = Pick<Comment, 'path' | 'side' | 'first' | 'last' | 'text'> & { id?: number };

export class Review {
  all = $state.raw<Comment[]>([]);
  error = $state('');

  constructor(
    readonly run: string,
    readonly from: string,
    readonly to: string,
  ) {}

  /** The comments that were not sent yet. */
  get open(): Comment[] {
    return this.all.filter((comment) => !comment.sent);
  }

  of(path: string): Comment[] {
    return this.all.filter((comment) => comment.path === path);
  }

  async load(): Promise<void> {
    const { data } = await told(client.GET('/v1/runs/{run}/comments', { params: { path: { run: this.run } } }));
    this.all = data.comments.filter((comment) => comment.from === this.from && comment.to === this.to);
  }

  async put(draft: Draft): Promise<void> {
    if (!draft.text.trim()) {
      if (draft.id) await this.remove(draft.id);
      return;
    }
    const { path, side, first, last, text, id } = draft;
    const body = { from: this.from, to: this.to, path, side, first, last, text, replaces: id };
    await told(client.POST('/v1/runs/{run}/comments', { params: { path: { run: this.run } }, body }));
    await this.load();
  }

  async remove(id: number): Promise<void> {
    await told(client.DELETE('/v1/runs/{run}/comments/{id}', { params: { path: { run: this.run, id: String(id) } } }));
    await this.load();
  }

  /** Marks all open comments as sent. */
  async sent(): Promise<void> {
    const ids = this.open.map((comment) => comment.id);
    if (ids.length === 0) return;
    await told(client.POST('/v1/runs/{run}/comments/sent', { params: { path: { run: this.run } }, body: { ids } }));
    await this.load();
  }

  /** The open comments as a person or an agent reads them: a place, then the text. */
  text(): string {
    return reviewText(this.open);
  }
}

export function reviewText(comments: Pick<Comment, 'path' | 'side' | 'first' | 'last' | 'text'>[]): string {
  type One = (typeof comments)[number];
  const lines = (one: One) => (one.first === one.last ? `${one.first}` : `${one.first}-${one.last}`);
  const removed = (one: One) => (one.side === 'old' ? ' (removed)' : '');
  return [...comments]
    .sort((a, b) => a.path.localeCompare(b.path) || a.first - b.first)
    .map((one) => `${one.path}:${lines(one)}${removed(one)}\n${one.text.trim()}`)
    .join('\n\n');
}
