// The error of a call, and the errors by which a handler ends its attempt.

import type { Duration } from "./options.js";

/** The problem document of the daemon. */
export interface Problem {
  readonly code: string;
  readonly detail: string;
  readonly title?: string;
  readonly status?: number;
  readonly field?: string;
  readonly retryable: boolean;
}

/**
 * A call that did not succeed.
 *
 * `code` never changes between versions, so compare that. The message has the fault, the rule and the
 * remedy, and `field` names the wrong part of the call. The codes of the daemon are in its manual; this
 * client adds `unreachable` (nothing was sent), `no_answer` (the call may have been carried out) and
 * `not_keyfall` (something else answered, such as a proxy).
 */
export class KeyfallError extends Error {
  override readonly name = "KeyfallError";
  readonly code: string;
  /** The fault, the rule and the remedy. */
  readonly detail: string;
  readonly title: string;
  /** The HTTP status; `undefined` if there was no answer. */
  readonly status: number | undefined;
  readonly field: string | undefined;
  /** Whether the same call can succeed later. */
  readonly retryable: boolean;
  /** The milliseconds to wait before that, if the daemon named them. */
  readonly retryAfter: number | undefined;

  constructor(problem: Problem, more: { retryAfter?: number | undefined; cause?: unknown } = {}) {
    const where = problem.field === undefined ? "" : `${problem.field}: `;
    super(`${where}${problem.detail} (${problem.code})`, { cause: more.cause });
    this.code = problem.code;
    this.detail = problem.detail;
    this.title = problem.title ?? "";
    this.status = problem.status;
    this.field = problem.field;
    this.retryable = problem.retryable;
    this.retryAfter = more.retryAfter;
  }
}

/**
 * Thrown by a handler: the attempt failed. The retry policy decides when the job runs again, unless
 * `after` does.
 */
export class Retry extends Error {
  override readonly name = "Retry";
  readonly after: Duration | undefined;

  constructor(reason: string, options: { after?: Duration } = {}) {
    super(reason);
    this.after = options.after;
  }
}

/** Thrown by a handler: no further attempt can help. The job becomes a dead letter. */
export class Bury extends Error {
  override readonly name = "Bury";
}

/** Thrown by a handler: the job runs later, and this attempt does not count. */
export class Snooze extends Error {
  override readonly name = "Snooze";
  readonly after: Duration;

  constructor(after: Duration) {
    super(`for ${after}`);
    this.after = after;
  }
}

/** The reason of `job.signal`: the work of this attempt is no longer wanted. */
export class JobStopped extends Error {
  override readonly name = "JobStopped";
  /**
   * `cancelled`: the job was cancelled. `lost`: the lease has lapsed, and another worker may have the job.
   * `stopping`: the grace of the worker is over, and it gives the job back.
   */
  readonly reason: "cancelled" | "lost" | "stopping";

  constructor(reason: "cancelled" | "lost" | "stopping") {
    super(reason);
    this.reason = reason;
  }
}
