// Plays the scenarios of clients/conformance.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { BatchCall, Client, KeyfallError, parseJson, writeJson } from "keyfall";

import { REPOSITORY, type Server, startDaemon, startRedis } from "./site.js";

type Fields = Record<string, unknown>;

interface Step {
  readonly call: string;
  readonly with: Fields;
  readonly expect?: unknown;
  readonly error?: Fields;
  readonly save?: Record<string, string>;
}

interface Scenario {
  readonly scenario: string;
  readonly steps: readonly Step[];
}

const folder = join(REPOSITORY, "clients/conformance");
const files = readdirSync(folder).filter((name) => name.endsWith(".json"));
const scenarios = files.flatMap(
  (name) => parseJson(readFileSync(join(folder, name), "utf8")) as Scenario[],
);

let redis: Server;
let client: Client;
let daemon: Server & { url: string };
before(async () => {
  redis = await startRedis();
  daemon = await startDaemon(redis);
  client = new Client(daemon.url);
});
after(async () => {
  await daemon.close();
  await redis.close();
});

/** A value of a step, with the names in braces replaced. */
function filled(value: unknown, names: ReadonlyMap<string, string>): unknown {
  if (typeof value === "string") {
    return [...names].reduce((text, [name, one]) => text.replaceAll(`{${name}}`, one), value);
  }
  if (Array.isArray(value)) {
    return value.map((one) => filled(one, names));
  }
  return typeof value === "object" && value !== null ? mapped(value, (one) => filled(one, names)) : value;
}

function mapped(fields: object, change: (value: unknown) => unknown): Fields {
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, change(value)]));
}

const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const camel = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** An answer in the form of the scenarios. */
function plain(value: unknown): unknown {
  if (value instanceof Date) {
    return value.toISOString();
  }
  if (value instanceof KeyfallError) {
    const { code, status, field, retryable } = value;
    return { code, status, field, retryable };
  }
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const fields: Fields = {};
  for (const [name, one] of Object.entries(value)) {
    if (one instanceof Uint8Array) {
      fields["bytes"] = Buffer.from(one).toString("base64");
    } else {
      fields[snake(name)] = name === "payload" ? one : plain(one);
    }
  }
  return fields;
}

/** Objects need the wanted fields, lists the wanted length. */
function check(got: unknown, wanted: unknown, where: string): void {
  if (wanted === "$present") {
    assert.ok(got !== undefined && got !== null, where);
  } else if (Array.isArray(wanted) && Array.isArray(got)) {
    assert.equal(got.length, wanted.length, where);
    wanted.forEach((one, number) => check(got[number], one, `${where}[${number}]`));
  } else if (typeof wanted === "object" && wanted !== null && typeof got === "object" && got !== null) {
    for (const [name, one] of Object.entries(wanted)) {
      check((got as Fields)[name], one, `${where}.${name}`);
    }
  } else {
    assert.strictEqual(got ?? null, wanted, where);
  }
}

function payload(given: Fields): never {
  const { bytes } = given;
  return (typeof bytes === "string" ? new Uint8Array(Buffer.from(bytes, "base64")) : given["payload"]) as never;
}

/** The fields of a step that are options. */
function options(given: Fields): never {
  const own = Object.entries(given).filter(
    ([name]) => !["call", "key", "payload", "bytes", "letter", "leases", "rule"].includes(name),
  );
  return Object.fromEntries(own.map(([name, value]) => [camel(name), value])) as never;
}

function line(given: Fields): BatchCall {
  const key = given["key"] as string;
  switch (given["call"]) {
    case "schedule": return BatchCall.schedule(key, payload(given), options(given));
    case "cancel": return BatchCall.cancel(key);
    case "postpone": return BatchCall.postpone(key, options(given));
    case "update": return BatchCall.update(key, payload(given));
    case "fire": return BatchCall.fire(key);
    case "requeue": return BatchCall.requeue(key, given["letter"] as number);
    default: throw new Error(`a batch has no call ${String(given["call"])}`);
  }
}

async function make(call: string, given: Fields): Promise<unknown> {
  const key = given["key"] as string;
  const letter = given["letter"] as number;
  const prefix = given["prefix"] as string;
  const leases = given["leases"] as string[];
  const rule = given["rule"] as never;
  const more: Fields = options(given);
  switch (call) {
    case "schedule": return client.schedule(key, payload(given), options(given));
    case "get": return client.get(key);
    case "cancel": return client.cancel(key);
    case "postpone": return client.postpone(key, options(given));
    case "fire": return client.fire(key);
    case "update": return client.update(key, payload(given));
    case "pull": return client.pull({ ...more, wait: 1000 * (given["wait"] as number) });
    case "finish": return client.finish(leases);
    case "extend": return client.extend(leases, given["by"] as string);
    case "fail": return client.fail(leases, given["error"] as string, options(given));
    case "snooze": return client.snooze(leases, given["after"] as string | undefined);
    case "change_rule": return client.changeRule(key, rule);
    case "pause_rule": return client.pauseRule(key);
    case "resume_rule": return client.resumeRule(key);
    case "preview_rule": return client.previewRule(rule);
    case "set_series": return client.setSeries(key, { ...more, ...part(given, "payload") });
    case "preview_series": return client.previewSeries(key, options(given));
    case "get_series": return client.getSeries(key);
    case "cancel_series": return client.cancelSeries(key);
    case "dead_letters": return client.deadLetters(key);
    case "requeue": return client.requeue(key, letter);
    case "delete_letter": return client.deleteLetter(key, letter);
    case "count": return client.count(prefix);
    case "jobs": return all(client.jobs(prefix, options(given)));
    case "cancel_many": return client.cancelMany(prefix, options(given));
    case "fire_many": return client.fireMany(prefix, options(given));
    case "postpone_many": return client.postponeMany(prefix, options(given));
    case "batch": return client.batch((given["lines"] as Fields[]).map(line));
    default: throw new Error(`no client has the call ${call}`);
  }
}

async function all<T>(some: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const one of some) {
    list.push(one);
  }
  return list;
}

function part(fields: Fields, name: string): Fields {
  return name in fields ? { [name]: fields[name] } : {};
}

async function play(scenario: Scenario, app: string): Promise<void> {
  // Due times are at most ten years ahead.
  const names = new Map([["app", app], ["year", `${new Date().getUTCFullYear() + 2}`]]);
  for (const [number, step] of scenario.steps.entries()) {
    const where = `step ${number}, ${step.call}`;
    let got: unknown;
    try {
      got = plain(await make(step.call, filled(step.with, names) as Fields));
    } catch (error) {
      assert.ok(error instanceof KeyfallError && step.error !== undefined, `${where}: ${error}`);
      assert.ok(error.detail !== "" && error.title !== "");
      check(plain(error), step.error, where);
      continue;
    }
    assert.equal(step.error, undefined, `${where}: ${writeJson(got)}`);
    check(got, filled(step.expect, names), where);
    for (const [name, path] of Object.entries(step.save ?? {})) {
      const [position, field] = path.split(".");
      names.set(name, (got as Fields[])[Number(position)]![field!] as string);
    }
  }
}

for (const [number, scenario] of scenarios.entries()) {
  test(scenario.scenario, () => play(scenario, `ts${number}`));
}
