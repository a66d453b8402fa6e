// Data of a page: a snapshot, read again when the journal has an entry that concerns it. No entry, no request.
import { onDestroy } from 'svelte';
import { ProblemError, sentence, type Entry } from './api';
import { onAnew, onEntries } from './live.svelte';

/** The shortest time between two requests for the same data, however many entries come. */
const AT_MOST_EVERY_MS = 250;
/** The pause after a request, as a multiple of the time that it took: a busy server is not asked all the time. */
const PAUSE = 4;

export class Resource<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state<string | undefined>(undefined);
  /** The status of the last problem: 404 for what does not exist (any more). */
  status = $state(0);
  loading = $state(true);
  #seq = 0;
  #last = 0;
  #took = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #running = false;
  #again = false;
  #version = 0;
  #ended = false;

  constructor(
    private load: () => Promise<{ data: T; seq: number }>,
    private concerns: (entry: Entry) => boolean,
  ) {
    const ends = [
      onEntries((entries) => {
        if (entries.some((entry) => entry.seq > this.#seq && this.concerns(entry))) this.#soon();
      }),
      onAnew(() => this.#soon()),
    ];
    onDestroy(() => {
      this.#ended = true;
      clearTimeout(this.#timer);
      ends.forEach((end) => end());
    });
  }

  /** Reads the data now, such as after the filter has changed. An earlier answer that comes late is dropped. */
  async refresh(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const version = ++this.#version;
    this.#running = true;
    this.#last = performance.now();
    try {
      const { data, seq } = await this.load();
      if (version !== this.#version || this.#ended) return;
      this.#seq = seq;
      this.data = data;
      this.error = undefined;
      this.status = 200;
    } catch (error) {
      if (version !== this.#version || this.#ended) return;
      this.error = sentence(error);
      this.status = error instanceof ProblemError ? error.status : 0;
    } finally {
      if (version === this.#version) {
        this.#took = performance.now() - this.#last;
        this.loading = false;
        this.#running = false;
        if (this.#again) {
          this.#again = false;
          this.#soon();
        }
      }
    }
  }

  #soon(): void {
    if (this.#running) {
      this.#again = true;
      return;
    }
    if (this.#timer) return;
    const wait = Math.max(0, this.#last + Math.max(AT_MOST_EVERY_MS, PAUSE * this.#took) - performance.now());
    this.#timer = setTimeout(() => void this.refresh(), wait);
  }
}
