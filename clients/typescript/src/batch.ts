// Many calls in few requests.

import { type Problem, KeyfallError } from "./errors.js";
import * as calls from "./calls.js";
import type { Call } from "./calls.js";
import { parseJson, writeJson } from "./json.js";
import type { Body, Payload, ScheduleOptions, When } from "./options.js";

/**
 * The lines of one request. The daemon answers while it reads, so a client that sends everything first
 * must not send more than the buffers between hold.
 */
const LINES = 500;

/** A line of a batch. */
export class BatchCall {
  readonly body: Body & { key: string };
  readonly call: Call<unknown>;

  private constructor(verb: string, key: string, call: Call<unknown>) {
    this.body = { call: verb, key, ...call.body };
    this.call = call;
  }

  static schedule(key: string, payload: Payload = null, options: ScheduleOptions = {}): BatchCall {
    return new BatchCall("schedule", key, calls.schedule(key, payload, options));
  }

  static cancel(key: string): BatchCall {
    return new BatchCall("cancel", key, calls.cancel(key, {}));
  }

  static postpone(key: string, when: When): BatchCall {
    return new BatchCall("postpone", key, calls.postpone(key, when));
  }

  static fire(key: string): BatchCall {
    return new BatchCall("fire", key, calls.fire(key));
  }

  static update(key: string, payload: Payload): BatchCall {
    return new BatchCall("payload", key, calls.update(key, payload));
  }

  static requeue(key: string, letter: number, when: When = {}): BatchCall {
    return new BatchCall("requeue", key, calls.requeue(key, letter, when));
  }

  static deleteLetter(key: string, letter: number): BatchCall {
    const call = calls.deleteLetter(key, letter);
    return new BatchCall("delete", key, { ...call, body: { letter } });
  }
}

/** The answer to a line of a batch: a value, as the single call returns it, or an error. */
export type BatchResult =
  | { readonly value: unknown; readonly error?: undefined }
  | { readonly value?: undefined; readonly error: KeyfallError };

/** The lines of one batch, and the answers so far. */
export class Batch {
  readonly #lines: readonly BatchCall[];
  readonly #results: (BatchResult | undefined)[];
  /** The lines that the last request has refused for now, and why. */
  readonly #refused = new Map<number, KeyfallError>();

  constructor(lines: readonly BatchCall[]) {
    this.#lines = lines;
    this.#results = lines.map(() => undefined);
  }

  get results(): BatchResult[] {
    return this.#results.filter((result) => result !== undefined);
  }

  get isAnswered(): boolean {
    return this.left === 0;
  }

  /** How many lines have no answer yet. */
  get left(): number {
    return this.#results.filter((result) => result === undefined).length;
  }

  /** The lines of the next request, as their numbers and as text. */
  next(): { some: number[]; text: string } {
    const open = [...this.#results.keys()].filter((number) => this.#results[number] === undefined);
    const some = open.slice(0, LINES);
    this.#refused.clear();
    const text = some.map((number) => `${writeJson(this.#lines[number]!.body)}\n`).join("");
    return { some, text };
  }

  /** Takes answers in; they may break off. Returns the reason if lines have to be sent again. */
  answered(some: readonly number[], text: string): KeyfallError | undefined {
    let again: KeyfallError | undefined;
    const last = new Map(some.map((number) => [this.#lines[number]!.body.key, number]));
    for (const one of text.split("\n").slice(0, -1)) {
      const answer = parseJson(one) as { line: number; result?: unknown; problem?: Problem };
      const number = some[answer.line - 1];
      // Older daemons that stop answer one line more than there is.
      if (number === undefined) {
        continue;
      }
      const { call, body } = this.#lines[number]!;
      if (answer.problem === undefined) {
        this.#results[number] = { value: call.read(answer.result) };
        continue;
      }
      const error = new KeyfallError(answer.problem);
      // Lines about one job keep their order: only its last line can be sent again.
      if (error.retryable && last.get(body.key) === number) {
        again = error;
        this.#refused.set(number, error);
      } else if (call.means !== undefined && error.code in call.means) {
        this.#results[number] = { value: call.means[error.code] };
      } else {
        this.#results[number] = { error };
      }
    }
    if (again === undefined && some.some((number) => this.#results[number] === undefined)) {
      again = new KeyfallError({
        code: "no_answer",
        detail: "the answer to the batch broke off",
        retryable: true,
      });
    }
    return again;
  }

  /**
   * The lines that were refused get their errors. If the request itself has failed, all lines without an
   * answer get this error.
   */
  givenUp(error: KeyfallError): void {
    const all = this.#refused.size === 0;
    for (const [number, result] of this.#results.entries()) {
      const own = all ? error : this.#refused.get(number);
      if (result === undefined && own !== undefined) {
        this.#results[number] = { error: own };
      }
    }
  }
}
