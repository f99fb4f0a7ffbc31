// The worker.

import { setTimeout as sleep } from "node:timers/promises";

import type { PulledJob } from "./answers.js";
import * as calls from "./calls.js";
import type { Client } from "./client.js";
import { Bury, JobStopped, KeyfallError, Retry, Snooze } from "./errors.js";
import { pause } from "./http.js";
import { Leases, MOST_JOBS, patience } from "./leases.js";
import type { Duration } from "./options.js";

/** How long the error text of a failed attempt may be. */
const LONGEST_ERROR = 2000;
/** After the grace, handlers have so many milliseconds to notice that they are to stop. */
const LAST_MOMENT = 1000;

/** A job for a handler. `signal` is aborted with a `JobStopped` when its work is no longer wanted. */
export interface WorkerJob extends PulledJob {
  /** The first three segments of the key. */
  readonly kind: string;
  /** The last segment of the key. */
  readonly id: string;
  readonly signal: AbortSignal;
}

export type JobHandler = (job: WorkerJob) => unknown;

/** What a worker tells about itself. The default tells it to the console. */
export interface WorkerLog {
  warn(message: string): void;
  error(message: string): void;
}

export interface WorkerOptions {
  /** How many jobs run at a time. Defaults to 10. */
  readonly concurrency?: number;
  /** The milliseconds for which a pull waits, and so the time that a stop of an idle worker takes. Defaults to 2,000. */
  readonly wait?: number;
  /** The milliseconds that jobs have to end after a stop; the others are given back. Defaults to 25,000. */
  readonly grace?: number;
  readonly log?: WorkerLog;
}

/** The call that ends a lease. */
interface Settlement {
  readonly verb: "finish" | "fail" | "snooze";
  readonly more?: { error?: string; after?: Duration | undefined; bury?: boolean };
}

/**
 * Pulls jobs that are due, and runs up to `concurrency` of them at a time.
 *
 * A handler that returns has done its job; one that throws has failed, and the retry policy decides.
 * `Retry`, `Bury` and `Snooze` say what happens instead. The worker extends the leases of jobs while they
 * run. A handler that blocks the event loop loses its lease.
 */
export class Worker {
  readonly #client: Client;
  readonly #concurrency: number;
  readonly #wait: number;
  readonly #grace: number;
  readonly #log: WorkerLog;
  readonly #handlers = new Map<string, JobHandler>();
  readonly #running = new Set<Promise<void>>();
  readonly #leases: Leases;
  /** Ends the wait for a free place. */
  #wake: () => void = () => {};
  readonly #stopping = new AbortController();
  /** Aborted when jobs have been given back: then nothing is settled any more. */
  readonly #ended = new AbortController();

  constructor(client: Client, options: WorkerOptions = {}) {
    const { concurrency = 10, wait = 2_000, grace = 25_000, log = console } = options;
    if (!(concurrency >= 1)) {
      throw new RangeError(`concurrency: ${concurrency} is too low: give 1 or more`);
    }
    this.#client = client;
    this.#concurrency = concurrency;
    this.#wait = wait;
    this.#grace = grace;
    this.#log = log;
    this.#leases = new Leases((leases, length) =>
      client.send(calls.settle("extend", leases, { by: length }), {
        retries: 0,
        timeout: patience(length),
      }),
    );
  }

  /**
   * Sets the handler of a kind, `app1:trans:notice`, or of the kinds with a prefix, `app1:trans:`. The
   * handler of the kind comes before that of a prefix.
   */
  on(jobs: string, handler: JobHandler): this {
    if (!jobs.endsWith(":") && jobs.split(":").length !== 3) {
      throw new TypeError(
        `jobs: ${jobs} is neither a kind nor a prefix: write three segments such as app1:trans:notice, ` +
          "or a prefix of kinds that ends with a colon, app1:trans:",
      );
    }
    if (this.#handlers.has(jobs)) {
      throw new TypeError(`jobs: ${jobs} has a handler already: remove one of the two`);
    }
    this.#handlers.set(jobs, handler);
    return this;
  }

  /** Pulls no more, and lets jobs end within the grace. */
  stop(): void {
    this.#stopping.abort();
    this.#wake();
  }

  /**
   * Works until `stop` is called, and resolves when its jobs have ended or are given back. With
   * `signals`, SIGTERM and SIGINT stop it, and a second one ends the process at once. Rejects if the daemon
   * refuses a pull for good, for example because of the token.
   */
  async run(options: { signals?: boolean } = {}): Promise<void> {
    if (this.#handlers.size === 0) {
      throw new TypeError("the worker has no handler: add one, worker.on('app1:trans:notice', …)");
    }
    const stop = (): void => this.stop();
    const signals = options.signals === true ? (["SIGTERM", "SIGINT"] as const) : [];
    for (const signal of signals) {
      process.once(signal, stop);
    }
    try {
      await this.#pullJobs();
    } finally {
      this.stop();
      await this.#endJobs();
      for (const signal of signals) {
        process.off(signal, stop);
      }
    }
  }

  async #pullJobs(): Promise<void> {
    const names = [...this.#handlers.keys()];
    const kinds = names.filter((name) => !name.endsWith(":"));
    const prefixes = names.filter((name) => name.endsWith(":"));
    const stopping = this.#stopping.signal;
    let failures = 0;
    while (!stopping.aborted) {
      const free = Math.min(this.#concurrency - this.#running.size, MOST_JOBS);
      if (free === 0) {
        // A race would leave a reaction with each promise that goes on, and so for each job.
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        continue;
      }
      try {
        const options = { kinds, prefixes, max: free, wait: this.#wait };
        const pulled = await this.#client.pull(options, { retries: 0 });
        failures = 0;
        for (const job of pulled) {
          this.#start(job);
        }
      } catch (error) {
        if (!(error instanceof KeyfallError) || !error.retryable) {
          throw error;
        }
        failures += 1;
        if (failures === 1) {
          this.#log.warn(`no jobs for now, the worker tries again: ${error.message}`);
        }
        await elapsed(pause(failures, error.retryAfter), stopping);
      }
    }
  }

  #start(pulled: PulledJob): void {
    const stop = new AbortController();
    this.#leases.hold(pulled.lease, pulled.leaseMs, stop);
    if (this.#stopping.signal.aborted) {
      stop.abort(new JobStopped("stopping"));
    }
    const parts = pulled.key.split(":");
    const job: WorkerJob = {
      ...pulled,
      kind: parts.slice(0, 3).join(":"),
      id: parts.slice(3).join(":"),
      signal: stop.signal,
    };
    const run = this.#run(job).finally(() => {
      this.#leases.release(job.lease);
      this.#running.delete(run);
      this.#wake();
    });
    this.#running.add(run);
  }

  async #run(job: WorkerJob): Promise<void> {
    let end: Settlement | undefined;
    try {
      job.signal.throwIfAborted();
      await this.#handlerOf(job)(job);
      end = { verb: "finish" };
    } catch (error) {
      end = settlement(job, error);
    }
    if (end !== undefined) {
      await this.#settle(job, end);
    }
  }

  /** The handler of the kind itself, or else of its longest prefix. */
  #handlerOf(job: WorkerJob): JobHandler {
    const prefixes = [...this.#handlers.keys()].filter(
      (name) => name.endsWith(":") && job.key.startsWith(name),
    );
    const longest = prefixes.reduce((one, other) => (one.length > other.length ? one : other), "");
    return (this.#handlers.get(job.kind) ?? this.#handlers.get(longest))!;
  }

  /** Tells the daemon how the attempt ended, for as long as that takes. */
  async #settle(job: WorkerJob, end: Settlement): Promise<void> {
    // A job that was given back, because the grace is over, has no lease any more.
    for (let attempt = 1; this.#leases.holds(job.lease); attempt += 1) {
      let fault: unknown;
      try {
        const call = calls.settle(end.verb, [job.lease], end.more);
        const [result] = await this.#client.send(call, { retries: 0 });
        if (result?.problem === undefined) {
          return;
        }
        fault = result.problem;
      } catch (error) {
        fault = error;
      }
      if (!(fault instanceof KeyfallError) || !fault.retryable) {
        this.#log.error(`${job.key}: the end of its run was refused: ${fault}`);
        // A wrong delay fails the attempt, also one that JSON cannot hold.
        const isDelay = !(fault instanceof KeyfallError) || fault.field === "after";
        if (end.more?.after === undefined || !isDelay) {
          return;
        }
        end = { verb: "fail", more: { error: textOf(`the delay of its handler was refused: ${textOf(fault)}`) } };
        continue;
      }
      await elapsed(pause(attempt, fault.retryAfter), this.#ended.signal);
    }
  }

  /** Waits for jobs within the grace, and gives back the others. */
  async #endJobs(): Promise<void> {
    await this.#waitForJobs(this.#grace);
    this.#leases.stop("stopping");
    await this.#waitForJobs(LAST_MOMENT);
    const left = this.#leases.all();
    this.#leases.close();
    this.#ended.abort();
    for (let first = 0; first < left.length; first += MOST_JOBS) {
      const some = left.slice(first, first + MOST_JOBS);
      try {
        await this.#client.send(calls.settle("snooze", some), { retries: 1 });
        this.#log.warn(`${some.length} jobs did not end within the grace, and were given back`);
      } catch (error) {
        this.#log.warn(`${some.length} jobs run again when their leases end: ${error}`);
      }
    }
  }

  async #waitForJobs(milliseconds: number): Promise<void> {
    const done = new AbortController();
    const all = Promise.all(this.#running).then(() => done.abort());
    await Promise.race([all, elapsed(milliseconds, done.signal)]);
  }
}

/** How the attempt ends; `undefined` if its lease is lost, and there is nothing to end. */
function settlement(job: WorkerJob, error: unknown): Settlement | undefined {
  if (error instanceof Bury) {
    return { verb: "fail", more: { error: textOf(error.message), bury: true } };
  }
  if (error instanceof Retry) {
    return { verb: "fail", more: { error: textOf(error.message), after: error.after } };
  }
  if (error instanceof Snooze) {
    return { verb: "snooze", more: { after: error.after } };
  }
  const stopped = job.signal.aborted ? (job.signal.reason as JobStopped).reason : undefined;
  switch (stopped) {
    case "lost":
      return undefined;
    case "stopping":
      return { verb: "snooze" };
    case "cancelled":
      return { verb: "fail", more: { error: "the job was cancelled" } };
    default:
      return { verb: "fail", more: { error: textOf(error) } };
  }
}

/** An error as text that JSON can hold, whatever a handler throws. */
function textOf(error: unknown): string {
  let text: string;
  try {
    text = String(error);
  } catch {
    text = "it has no text";
  }
  // The daemon refuses half of a pair of surrogates, which a cut leaves behind.
  return text.slice(0, LONGEST_ERROR).replace(/\p{Surrogate}/gu, "\ufffd");
}

/** Waits for so long, or until the signal. */
async function elapsed(milliseconds: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(milliseconds, undefined, { signal });
  } catch {
    // It was aborted, which ends the wait as well.
  }
}
