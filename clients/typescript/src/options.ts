// The options of the calls, and their form in JSON.

import type { Json } from "./json.js";

/** `"15m"`, `"2h 30m"`, or a number of milliseconds. */
export type Duration = string | number;
/** RFC 3339, or a `Date`. */
export type Time = string | Date;
/** A cron expression, `"every 90m"`, or a table with `cron`, `every` or `after_end`. */
export type Rule = string | { readonly [name: string]: Json };
/** `"22:00-08:00"`, or a table with `hours`, `days`, `holidays`, `zone`, `instead`. */
export type QuietHours = string | { readonly [name: string]: Json };
/** `"15s 3m 10m"`, `"none"`, or a table such as `{ fixed: "30s", attempts: 5 }`. */
export type RetryPolicy = string | { readonly [name: string]: Json };
/** Anything that JSON can hold, or bytes. Integers beyond 2^53 are `bigint`. */
export type Payload = Json | Uint8Array;
export type Headers = Readonly<Record<string, string>>;

/** What a schedule may say beside key and payload. Without a time, the job is due now. */
export interface ScheduleOptions {
  readonly after?: Duration;
  readonly at?: Time;
  /** Gathers the calls for this key: due when they have been silent for so long. Needs `atMost`. */
  readonly debounce?: Duration;
  readonly atMost?: Duration;
  /** Spaces the jobs of this key. */
  readonly throttle?: Duration;
  /** Makes the job recur; the times come from the rule. */
  readonly recurring?: Rule;
  readonly quiet?: QuietHours;
  readonly headers?: Headers;
  readonly retry?: RetryPolicy;
  readonly attempts?: number;
  readonly timeout?: Duration;
  /** `"1h skip"`, `"1h bury"`, `"1h spread 10m"`, `"1h run"`. */
  readonly maxLateness?: string;
  /** Schedules only if there is no such job, or only if there is one. */
  readonly if?: "absent" | "present";
  /** The number of replicas that must have the job before the call is answered. */
  readonly durable?: number;
  readonly fsynced?: boolean;
}

/** What makes or changes a series. What is left out stays; a new series needs `anchor`, `zone`, `at`. */
export interface SeriesOptions {
  /** `"2026-12-24 18:00"`, on the wall of the zone, or RFC 3339. */
  readonly anchor?: Time;
  readonly zone?: string;
  /** Offsets such as `"-3d 09:00"`, or tables with `at`, and `name` or `payload`. */
  readonly at?: readonly (string | { readonly at: string; readonly name?: string; readonly payload?: Json })[];
  readonly payload?: Json;
  readonly past?: "skip" | "run";
  /** `null` ends the quiet hours. */
  readonly quiet?: QuietHours | null;
  readonly keep?: Duration;
  readonly again?: boolean;
  readonly headers?: Headers;
  readonly retry?: RetryPolicy;
  readonly attempts?: number;
  readonly timeout?: Duration;
}

/** Which jobs a list has. */
export interface SearchOptions {
  readonly state?: "pending" | "retrying" | "held" | "running" | "lapsed" | "dead";
  /** Jobs of a page; the list itself goes on through all pages. */
  readonly limit?: number;
  readonly dueBefore?: Time | Duration;
  readonly dueAfter?: Time | Duration;
  readonly attemptsOver?: number;
  readonly error?: string;
  readonly reason?: string;
  readonly recurring?: boolean;
}

/** The new due time of a job: either. */
export interface When {
  readonly after?: Duration;
  readonly at?: Time;
}

export type Body = Record<string, unknown>;

const DURATIONS = new Set([
  "after", "by", "debounce", "at_most", "throttle", "timeout", "keep", "due_before", "due_after",
]);

/** Options as the fields of a body. */
export function written(options: object): Body {
  const body: Body = {};
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined) {
      const field = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      body[field] = field === "payload" ? value : text(field, value);
    }
  }
  return body;
}

function text(field: string, value: unknown): unknown {
  if (value instanceof Date) {
    return value.toISOString();
  }
  return typeof value === "number" && DURATIONS.has(field) ? milliseconds(value) : value;
}

/** A number of milliseconds as text. */
export function milliseconds(value: number): string {
  return `${Math.round(value * 1000)}us`;
}

export function payloadFields(payload: Payload | undefined): Body {
  return payload instanceof Uint8Array
    ? { payload_base64: Buffer.from(payload).toString("base64") }
    : { payload: payload ?? null };
}
