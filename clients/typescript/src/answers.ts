// The answers of the daemon. A field that a newer daemon adds is kept as it is.

import { KeyfallError, type Problem } from "./errors.js";
import type { Headers } from "./options.js";

export interface Scheduled {
  readonly key: string;
  readonly placed: "created" | "replaced" | "succeeds" | "left_out";
  readonly due: Date;
  readonly armed: boolean;
  readonly reached?: Reached;
  /** The job is stored and may nevertheless not run. */
  readonly warnings?: readonly { readonly code: string; readonly detail: string }[];
}

/** The replicas and disks that have a durable call. */
export interface Reached {
  readonly met: boolean;
  readonly replicas: number;
  readonly onDisk?: boolean;
  readonly replicasOnDisk?: number;
}

/** `running`: the run goes on, but the job is not tried again. */
export type Cancelled = "cancelled" | "running" | "absent";

/** A job that was changed; `successor` says that it runs, and its successor was changed. */
export interface Changed {
  readonly key: string;
  readonly successor: boolean;
  readonly due: Date;
}

export interface Occurrence {
  readonly number: number;
  readonly scheduledFor: Date;
  readonly skipped: number;
  readonly pausedSince?: Date;
  readonly declaredBy?: string;
  readonly rule: unknown;
}

/** A job, or its latest dead letter. A payload that is not JSON is a `Uint8Array`. */
export interface Job {
  readonly key: string;
  readonly state: "pending" | "retrying" | "held" | "running" | "lapsed" | "dead";
  readonly due: Date;
  readonly attempts: number;
  readonly firstScheduledAt?: Date;
  readonly lastError?: string;
  readonly steps: readonly { readonly what: string; readonly at: Date }[];
  readonly headers: Headers;
  readonly payload: unknown;
  readonly retry?: unknown;
  readonly maxAttempts?: number;
  readonly timeout?: string;
  readonly maxLateness?: string;
  readonly occurrence?: Occurrence;
  readonly series?: unknown;
  readonly shift?: { readonly from: Date; readonly why: string };
  readonly letter?: number;
  readonly successorDue?: Date;
  readonly successor?: Job;
  readonly cancelled: boolean;
  readonly adopted?: boolean;
}

export interface Counts {
  readonly pending: number;
  readonly overdue: number;
  readonly running: number;
  readonly lapsed: number;
  readonly dead: number;
}

/** The effect of a call on many jobs. */
export interface ManyChanged {
  readonly matched: number;
  readonly done: number;
  readonly running: number;
  readonly skipped: number;
  readonly dryRun: boolean;
}

export interface Requeued {
  readonly key: string;
  readonly letter: number;
  readonly due: Date;
}

/** The rule of a job; `afterRun` says that the job runs, and the change applies from its end. */
export interface RuleChanged {
  readonly key: string;
  readonly changed: boolean;
  readonly afterRun: boolean;
  readonly due?: Date;
}

/** A rule in words, with its next five times. */
export interface RulePreview {
  readonly words: string;
  readonly rule: unknown;
  readonly times: readonly Date[];
}

export interface SeriesChanged {
  readonly key: string;
  readonly members: readonly {
    readonly key: string;
    readonly at: string;
    readonly what:
      | "created" | "moved" | "unchanged" | "cancelled" | "left_out" | "running" | "retrying" | "ended";
    readonly due?: Date;
    readonly why?: string;
  }[];
  readonly keptUntil?: Date;
}

export interface Series {
  readonly key: string;
  readonly anchor: Date;
  readonly zone: string;
  readonly past: string;
  readonly quiet?: unknown;
  readonly keptUntil: Date;
  readonly members: readonly {
    readonly key: string;
    readonly at: string;
    readonly state: "planned" | "retrying" | "running" | "dead" | "ended" | "left_out";
    readonly due: Date;
    readonly why?: string;
    readonly letter?: number;
  }[];
}

/** A job that is yours until its lease ends. A payload that is not JSON is a `Uint8Array`. */
export interface PulledJob {
  readonly key: string;
  readonly lease: string;
  readonly leaseMs: number;
  readonly payload: unknown;
  readonly headers: Headers;
  readonly attempt: number;
  readonly maxAttempts: number;
  /** The same for all attempts of this job, and for no other job. */
  readonly idempotencyKey: string;
  readonly due: Date;
  readonly lagMs: number;
  readonly firstScheduledAt: Date;
  /** It grows with each run of a key: a store that remembers the largest can refuse lower ones. */
  readonly fence: bigint;
}

/** What became of a lease, and of its job. */
export interface LeaseResult {
  readonly lease: string;
  readonly result:
    | "done" | "pending" | "replaced" | "cancelled" | "buried" | "extended" | "gone" | "taken" | "failed";
  readonly due?: Date;
  readonly letter?: number;
  readonly problem?: KeyfallError;
}

const TIMES = new Set([
  "due", "at", "first_scheduled_at", "successor_due", "scheduled_for", "paused_since", "kept_until",
  "anchor", "from",
]);
/** Their value is the user's own, and stays as it is. */
const FOREIGN = new Set(["payload", "headers", "rule", "retry", "quiet", "series"]);
/** Times are in UTC, to the milli- or microsecond. */
const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;

/** An answer with names and times as they are in this language. */
export function read<T>(value: unknown): T {
  return renamed(value) as T;
}

function renamed(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map((one) => (typeof one === "string" && TIME.test(one) ? new Date(one) : renamed(one)));
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const all: Record<string, unknown> = {};
  for (const [name, one] of Object.entries(value)) {
    const field = name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
    if (name === "payload_base64") {
      all["payload"] = new Uint8Array(Buffer.from(one as string, "base64"));
    } else if (name === "fence") {
      all[field] = BigInt(one as number | bigint);
    } else if (name === "problem") {
      all[field] = new KeyfallError(one as Problem);
    } else if (FOREIGN.has(name)) {
      all[field] = one;
    } else if (TIMES.has(name) && typeof one === "string" && TIME.test(one)) {
      all[field] = new Date(one);
    } else {
      all[field] = renamed(one);
    }
  }
  return all;
}
