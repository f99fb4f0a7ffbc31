// Each call of the HTTP API: what it sends, and how its answer is read. Nothing here sends.

import * as answers from "./answers.js";
import { read } from "./answers.js";
import type { Json } from "./json.js";
import {
  type Body,
  type Duration,
  type Payload,
  type Rule,
  type ScheduleOptions,
  type SearchOptions,
  type SeriesOptions,
  type When,
  milliseconds,
  payloadFields,
  written,
} from "./options.js";

/** A request, and the way to read its answer. */
export interface Call<T> {
  readonly method: "GET" | "PUT" | "POST" | "DELETE";
  readonly path: string;
  readonly read: (answer: unknown) => T;
  readonly body?: Body;
  readonly params?: Body;
  /** Whether a repeat does no harm if the first answer was lost. Defaults to yes. */
  readonly repeatable?: boolean;
  /** The milliseconds for which the daemon may wait before it answers. */
  readonly holds?: number;
  /** What a refusal with one of these codes means as an answer. */
  readonly means?: Readonly<Record<string, T>>;
}

const escaped = (key: string): string => encodeURIComponent(key).replaceAll("%3A", ":");
const job = (key: string, rest = ""): string => `/v1/jobs/${escaped(key)}${rest}`;
const seriesPath = (key: string): string => `/v1/series/${escaped(key)}`;
const dead = (key: string, rest = ""): string => `/v1/dead/${escaped(key)}${rest}`;

export function schedule(key: string, payload: Payload, options: ScheduleOptions): Call<answers.Scheduled> {
  const body = { ...payloadFields(payload), ...written(options) };
  return { method: "PUT", path: job(key), read, body };
}

export function get(key: string): Call<answers.Job | null> {
  return { method: "GET", path: job(key), read, means: { job_absent: null } };
}

export function cancel(key: string, options: { durable?: number; fsynced?: boolean }): Call<answers.Cancelled> {
  return {
    method: "DELETE",
    path: job(key),
    read: (answer) => ((answer as { running: boolean }).running ? "running" : "cancelled"),
    params: written(options),
    means: { job_absent: "absent" },
  };
}

export function postpone(key: string, when: When): Call<answers.Changed> {
  return { method: "POST", path: job(key, "/postpone"), read, body: written(when) };
}

export function fire(key: string): Call<answers.Changed> {
  return { method: "POST", path: job(key, "/fire"), read, body: {} };
}

export function update(key: string, payload: Payload): Call<answers.Changed | null> {
  return {
    method: "PUT",
    path: job(key, "/payload"),
    read: (answer) => (answer === undefined ? null : read<answers.Changed>(answer)),
    body: payloadFields(payload),
  };
}

export function changeRule(key: string, rule: Rule): Call<answers.RuleChanged> {
  return { method: "PUT", path: job(key, "/rule"), read, body: { rule } };
}

export function pauseRule(key: string): Call<answers.RuleChanged> {
  return { method: "POST", path: job(key, "/rule/pause"), read, body: {} };
}

export function resumeRule(key: string): Call<answers.RuleChanged> {
  return { method: "POST", path: job(key, "/rule/resume"), read, body: {} };
}

export function previewRule(rule: Rule): Call<answers.RulePreview> {
  return { method: "POST", path: "/v1/rules/preview", read, body: { rule } };
}

export function setSeries(key: string, options: SeriesOptions): Call<answers.SeriesChanged> {
  return { method: "PUT", path: seriesPath(key), read, body: written(options) };
}

export function previewSeries(key: string, options: SeriesOptions): Call<answers.SeriesChanged> {
  const body = { key, series: written(options) };
  return { method: "POST", path: "/v1/series/preview", read, body };
}

export function getSeries(key: string): Call<answers.Series | null> {
  return { method: "GET", path: seriesPath(key), read, means: { job_absent: null } };
}

export function cancelSeries(key: string): Call<answers.SeriesChanged | null> {
  return { method: "DELETE", path: seriesPath(key), read, means: { job_absent: null } };
}

/** A page of a list. */
export interface Page {
  readonly jobs: readonly answers.Job[];
  readonly next?: string;
}

export function jobs(prefix: string, options: SearchOptions, cursor: string | undefined): Call<Page> {
  const params = written({ prefix, ...options, cursor });
  return { method: "GET", path: "/v1/jobs", read, params };
}

export function count(prefix: string): Call<answers.Counts> {
  return { method: "GET", path: "/v1/jobs/count", read, params: { prefix } };
}

export function many(
  verb: "cancel" | "fire" | "postpone",
  prefix: string,
  options: When & { by?: Duration; dryRun?: boolean },
): Call<answers.ManyChanged> {
  return {
    method: "POST",
    path: `/v1/jobs/${verb}`,
    read,
    body: { prefix, ...written(options) },
    // Each repeat would postpone the jobs again.
    repeatable: options.by === undefined,
  };
}

export function deadLetters(key: string): Call<readonly answers.Job[]> {
  const letters = (answer: unknown) => read<{ letters: answers.Job[] }>(answer).letters;
  return { method: "GET", path: dead(key), read: letters };
}

export function requeue(key: string, letter: number, when: When): Call<answers.Requeued> {
  return { method: "POST", path: dead(key, "/requeue"), read, body: { letter, ...written(when) } };
}

export function deleteLetter(key: string, letter: number): Call<void> {
  return { method: "DELETE", path: dead(key), read: () => undefined, params: { letter } };
}

/** What a pull asks for. */
export interface PullOptions {
  readonly kinds?: readonly string[];
  readonly prefixes?: readonly string[];
  /** The most jobs. Defaults to 1. */
  readonly max?: number;
  /** The milliseconds to wait for the first job. Defaults to 30,000. */
  readonly wait?: number;
}

export function pull(options: PullOptions): Call<readonly answers.PulledJob[]> {
  const { kinds = [], prefixes = [], max = 1, wait = 30_000 } = options;
  const body = { kinds, prefixes, max, wait: milliseconds(wait) };
  const pulled = (answer: unknown) => read<{ jobs: answers.PulledJob[] }>(answer).jobs;
  return { method: "POST", path: "/v1/pull", read: pulled, body, holds: wait };
}

export function settle(
  verb: "finish" | "extend" | "fail" | "snooze",
  leases: readonly string[],
  more: { by?: Duration; error?: string; after?: Duration | undefined; bury?: boolean } = {},
): Call<readonly answers.LeaseResult[]> {
  const results = (answer: unknown) => read<{ results: answers.LeaseResult[] }>(answer).results;
  return { method: "POST", path: `/v1/leases/${verb}`, read: results, body: { leases, ...written(more) } };
}

/** Any other call of the HTTP API, with names and times as the daemon writes them. */
export function other(method: Call<unknown>["method"], path: string, body?: Json): Call<unknown> {
  const repeatable = method === "GET";
  const call = { method, path, read: (answer: unknown) => answer, repeatable };
  return body === undefined ? call : { ...call, body: body as Body };
}
