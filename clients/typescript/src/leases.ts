// The leases that a worker holds, by a clock that never goes back.

import type { LeaseResult } from "./answers.js";
import { JobStopped } from "./errors.js";

/** The most jobs of a pull, and the most leases of a call. */
export const MOST_JOBS = 1000;

/** A lease: when it ends at the earliest, and when it is extended, in milliseconds. */
interface Held {
  readonly length: number;
  readonly stop: AbortController;
  ends: number;
  next: number;
}

/** Extends each lease after a third of its time, so that two failures do not lose it. */
export class Leases {
  readonly #held = new Map<string, Held>();
  #timer: NodeJS.Timeout | undefined;
  #isExtending = false;
  readonly #extend: (leases: string[], length: number) => Promise<readonly LeaseResult[]>;

  constructor(extend: (leases: string[], length: number) => Promise<readonly LeaseResult[]>) {
    this.#extend = extend;
  }

  /** A lease that was pulled. It began as the daemon had sent the answer. */
  hold(lease: string, length: number, stop: AbortController): void {
    const since = performance.now();
    this.#held.set(lease, { length, stop, ends: since + length, next: since + length / 3 });
    this.#wake();
  }

  /** The lease has ended, or is extended no more. */
  release(lease: string): void {
    this.#held.delete(lease);
  }

  holds(lease: string): boolean {
    return this.#held.has(lease);
  }

  all(): string[] {
    return [...this.#held.keys()];
  }

  /** Tells the handlers of all leases to stop. */
  stop(reason: JobStopped["reason"]): void {
    for (const held of this.#held.values()) {
      held.stop.abort(new JobStopped(reason));
    }
  }

  /** Extends no lease any more. */
  close(): void {
    clearTimeout(this.#timer);
    this.#held.clear();
  }

  /** Sets the timer to the next lease that is to be extended. */
  #wake(): void {
    clearTimeout(this.#timer);
    if (this.#held.size === 0 || this.#isExtending) {
      return;
    }
    const next = Math.min(...[...this.#held.values()].map((held) => held.next));
    // At least each second, since a lease can lapse while it cannot be extended.
    const wait = Math.max(0, Math.min(1000, next - performance.now()));
    this.#timer = setTimeout(() => void this.#extendDue(), wait);
  }

  async #extendDue(): Promise<void> {
    this.#isExtending = true;
    const now = performance.now();
    const due = new Map<number, string[]>();
    for (const [lease, held] of this.#held) {
      if (held.ends <= now) {
        held.stop.abort(new JobStopped("lost"));
      }
      if (held.next <= now) {
        due.set(held.length, [...(due.get(held.length) ?? []), lease]);
      }
    }
    for (const [length, leases] of due) {
      for (let first = 0; first < leases.length; first += MOST_JOBS) {
        await this.#extendSome(leases.slice(first, first + MOST_JOBS), length);
      }
    }
    this.#isExtending = false;
    this.#wake();
  }

  async #extendSome(leases: string[], length: number): Promise<void> {
    const since = performance.now();
    const soon = since + Math.min(1000, length / 20);
    let results: readonly LeaseResult[];
    try {
      results = await this.#extend(leases, length);
    } catch {
      // The daemon is away: the pull says so, and the call is repeated soon.
      results = leases.map((lease) => ({ lease, result: "failed" }));
    }
    for (const { lease, result } of results) {
      const held = this.#held.get(lease);
      if (held === undefined) {
        continue;
      }
      if (result === "extended") {
        held.ends = since + length;
        held.next = since + length / 3;
      } else if (result === "failed") {
        held.next = soon;
      } else {
        held.next = Infinity;
        held.stop.abort(new JobStopped(result === "cancelled" ? "cancelled" : "lost"));
      }
    }
  }
}

/** The milliseconds that a call which extends such leases may take. */
export function patience(length: number): number {
  return Math.min(10_000, Math.max(500, length / 6));
}
