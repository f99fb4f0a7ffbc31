// The client.

import { setTimeout as sleep } from "node:timers/promises";

import type * as answers from "./answers.js";
import { Batch, type BatchCall, type BatchResult } from "./batch.js";
import * as calls from "./calls.js";
import type { Call, PullOptions } from "./calls.js";
import { KeyfallError } from "./errors.js";
import { Http, type SendOptions, pause } from "./http.js";
import type { Json } from "./json.js";
import type {
  Duration,
  Payload,
  Rule,
  ScheduleOptions,
  SearchOptions,
  SeriesOptions,
  When,
} from "./options.js";

export interface ClientOptions {
  readonly token?: string;
  /**
   * The milliseconds for a request, beside the time for which a pull waits; for a batch, the longest time
   * without an answer to a line. Defaults to 10,000.
   */
  readonly timeout?: number;
  /** How often a call is repeated that may be repeated. Defaults to 5. */
  readonly retries?: number;
  /** Replaces `fetch`, for example to set a CA or a proxy. */
  readonly fetch?: typeof fetch;
}

/**
 * Calls a daemon of Keyfall. A call that may be repeated is repeated while the daemon is away or asks to
 * wait.
 */
export class Client {
  readonly #http: Http;

  constructor(url = "http://127.0.0.1:9276", options: ClientOptions = {}) {
    this.#http = new Http({
      url,
      token: options.token,
      timeout: options.timeout ?? 10_000,
      retries: options.retries ?? 5,
      fetch: options.fetch ?? fetch,
    });
  }

  /** Creates the job, or replaces it. */
  schedule(key: string, payload: Payload = null, options: ScheduleOptions = {}): Promise<answers.Scheduled> {
    return this.send(calls.schedule(key, payload, options));
  }

  /** The job, or its latest dead letter; `null` if there is neither. */
  get(key: string): Promise<answers.Job | null> {
    return this.send(calls.get(key));
  }

  /** Cancels the job. A run goes on and is told to stop; it is not tried again. */
  cancel(key: string, options: { durable?: number; fsynced?: boolean } = {}): Promise<answers.Cancelled> {
    return this.send(calls.cancel(key, options));
  }

  /** Gives a pending job another due time. */
  postpone(key: string, when: When): Promise<answers.Changed> {
    return this.send(calls.postpone(key, when));
  }

  /** Makes a pending job due now. */
  fire(key: string): Promise<answers.Changed> {
    return this.send(calls.fire(key));
  }

  /** Changes the payload. `null` means that the job runs, and has the new payload if it runs again. */
  update(key: string, payload: Payload): Promise<answers.Changed | null> {
    return this.send(calls.update(key, payload));
  }

  /** Gives a recurring job another rule. */
  changeRule(key: string, rule: Rule): Promise<answers.RuleChanged> {
    return this.send(calls.changeRule(key, rule));
  }

  /** Pauses the rule of a recurring job. */
  pauseRule(key: string): Promise<answers.RuleChanged> {
    return this.send(calls.pauseRule(key));
  }

  /** Resumes a rule that was paused, with its next time. */
  resumeRule(key: string): Promise<answers.RuleChanged> {
    return this.send(calls.resumeRule(key));
  }

  /** Says a rule in words, with its next times. Nothing is stored. */
  previewRule(rule: Rule): Promise<answers.RulePreview> {
    return this.send(calls.previewRule(rule));
  }

  /** Makes a series, moves its date, or changes its members, in one step. */
  setSeries(key: string, options: SeriesOptions): Promise<answers.SeriesChanged> {
    return this.send(calls.setSeries(key, options));
  }

  /** What `setSeries` would do. Nothing is stored. */
  previewSeries(key: string, options: SeriesOptions): Promise<answers.SeriesChanged> {
    return this.send(calls.previewSeries(key, options));
  }

  /** The series as a whole; `null` if there is none. */
  getSeries(key: string): Promise<answers.Series | null> {
    return this.send(calls.getSeries(key));
  }

  /** Cancels the members that are pending, and the plan; `null` if there is no series. */
  cancelSeries(key: string): Promise<answers.SeriesChanged | null> {
    return this.send(calls.cancelSeries(key));
  }

  /** All jobs with this prefix, page by page. */
  async *jobs(prefix = "", options: SearchOptions = {}): AsyncGenerator<answers.Job, void, undefined> {
    let cursor: string | undefined;
    do {
      const page: calls.Page = await this.send(calls.jobs(prefix, options, cursor));
      yield* page.jobs;
      cursor = page.next;
    } while (cursor !== undefined);
  }

  /** How many jobs are in each state. */
  count(prefix = ""): Promise<answers.Counts> {
    return this.send(calls.count(prefix));
  }

  /** Cancels all jobs with this prefix. */
  cancelMany(prefix: string, options: { dryRun?: boolean } = {}): Promise<answers.ManyChanged> {
    return this.send(calls.many("cancel", prefix, options));
  }

  /** Makes all pending jobs with this prefix due now. */
  fireMany(prefix: string, options: { dryRun?: boolean } = {}): Promise<answers.ManyChanged> {
    return this.send(calls.many("fire", prefix, options));
  }

  /**
   * Gives all pending jobs with this prefix another due time. With `by`, the call is not repeated if its
   * answer is lost: each repeat would postpone the jobs again.
   */
  postponeMany(
    prefix: string,
    options: When & { by?: Duration; dryRun?: boolean },
  ): Promise<answers.ManyChanged> {
    return this.send(calls.many("postpone", prefix, options));
  }

  /** The dead letters of a job, the latest first. */
  deadLetters(key: string): Promise<readonly answers.Job[]> {
    return this.send(calls.deadLetters(key));
  }

  /** Makes a dead letter a job again, with all its attempts. */
  requeue(key: string, letter: number, when: When = {}): Promise<answers.Requeued> {
    return this.send(calls.requeue(key, letter, when));
  }

  /** Deletes a dead letter. */
  deleteLetter(key: string, letter: number): Promise<void> {
    return this.send(calls.deleteLetter(key, letter));
  }

  /** Makes many calls in few requests. A faulty line does not affect the others. */
  async batch(lines: Iterable<BatchCall>, options: { signal?: AbortSignal } = {}): Promise<BatchResult[]> {
    const batch = new Batch([...lines]);
    let attempt = 0;
    while (!batch.isAnswered) {
      const { left } = batch;
      const { some, text } = batch.next();
      const sent = await this.#http.sendLines(text, options.signal);
      const error = sent instanceof KeyfallError ? sent : batch.answered(some, sent);
      if (batch.left < left) {
        attempt = 0;
      }
      if (error === undefined) {
        continue;
      }
      attempt += 1;
      if (attempt > this.#http.retries || !error.retryable) {
        batch.givenUp(error);
        attempt = 0;
      } else {
        await sleep(pause(attempt, error.retryAfter), undefined, options);
      }
    }
    return batch.results;
  }

  /** Waits for jobs that are due, each with a lease. `Worker` does this, and keeps the leases. */
  pull(options: PullOptions, send: SendOptions = {}): Promise<readonly answers.PulledJob[]> {
    return this.send(calls.pull(options), send);
  }

  /** The jobs are done. */
  finish(leases: readonly string[]): Promise<readonly answers.LeaseResult[]> {
    return this.send(calls.settle("finish", leases));
  }

  /** The leases end after this time from now. */
  extend(leases: readonly string[], by: Duration): Promise<readonly answers.LeaseResult[]> {
    return this.send(calls.settle("extend", leases, { by }));
  }

  /** The attempts failed. */
  fail(
    leases: readonly string[],
    error: string,
    options: { after?: Duration; bury?: boolean } = {},
  ): Promise<readonly answers.LeaseResult[]> {
    return this.send(calls.settle("fail", leases, { error, ...options }));
  }

  /** The jobs run later, and the attempts do not count. */
  snooze(leases: readonly string[], after?: Duration): Promise<readonly answers.LeaseResult[]> {
    return this.send(calls.settle("snooze", leases, { after }));
  }

  /**
   * Any other call of the HTTP API, such as `("GET", "/v1/kinds")`. It is not repeated if its answer is
   * lost, unless it is a `GET`.
   */
  request(method: "GET" | "PUT" | "POST" | "DELETE", path: string, body?: Json): Promise<unknown> {
    return this.send(calls.other(method, path, body));
  }

  /** Makes a call, and repeats it as far as that is allowed. */
  send<T>(call: Call<T>, options: SendOptions = {}): Promise<T> {
    return this.#http.send(call, options);
  }
}
