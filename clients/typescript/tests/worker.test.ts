// Workers: the end of each attempt, leases, stops, outages, and kills.

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type TestContext, after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { BatchCall, Bury, Client, KeyfallError, Retry, Snooze, Worker } from "keyfall";
import type { JobHandler, JobStopped, WorkerOptions } from "keyfall";

import { KEYFALL, PATIENCE, type Server, eventually, startDaemon, startRedis } from "./site.js";

/** Long enough for a busy machine, short enough for a test that waits for it to lapse. */
const QUICK = { flags: ["--worker-lease", "3s"] };

let redis: Server;
let daemon: Server & { url: string };
let client: Client;
before(async () => {
  redis = await startRedis();
  daemon = await startDaemon(redis, QUICK);
  client = new Client(daemon.url);
});
after(async () => {
  await daemon.close();
  await redis.close();
});

/** A worker that runs beside the test; the function stops it, as does the end of the test. */
function work(t: TestContext, kind: string, handler: JobHandler, options: WorkerOptions = {}, url = daemon.url) {
  const worker = new Worker(new Client(url), { wait: 500, ...options });
  const run = worker.on(kind, handler).run();
  const stop = async (): Promise<void> => {
    worker.stop();
    await run;
  };
  t.after(stop);
  return stop;
}

/** The number of jobs that have not ended. */
async function left(calls: Client, kind: string): Promise<number> {
  const { pending, running, lapsed } = await calls.count(`${kind}:`);
  return pending + running + lapsed;
}

test("each end of a handler", async (t) => {
  const kind = "ends:trans:notice";
  const seen: string[] = [];
  const stop = work(t, kind, (job) => {
    const again = seen.includes("snoozes 1");
    seen.push(`${job.id} ${job.attempt}`);
    if (job.attempt === 1) {
      switch (job.id) {
        case "throws": throw new Error("the shop answered 503");
        case "retries": throw new Retry("the shop is busy", { after: "10ms" });
        case "buried": throw new Bury("the order does not exist");
        case "snoozes": if (!again) throw new Snooze(10);
      }
    }
  });
  for (const id of ["done", "throws", "retries", "buried", "snoozes"]) {
    await client.schedule(`${kind}:${id}`, { id });
  }
  await eventually("the buried one is dead", async () => (await client.count(`${kind}:`)).dead === 1);
  await eventually("the failed one waits", async () => (await left(client, kind)) === 1);
  await stop();
  const threw = await client.get(`${kind}:throws`);
  assert.deepEqual([threw?.state, threw?.attempts, threw?.lastError], ["retrying", 1, "Error: the shop answered 503"]);
  const buried = await client.get(`${kind}:buried`);
  assert.deepEqual([buried?.state, buried?.lastError], ["dead", "the order does not exist"]);
  assert.deepEqual(seen.sort(), ["buried 1", "done 1", "retries 1", "retries 2", "snoozes 1", "snoozes 1", "throws 1"]);
  await client.cancelMany(`${kind}:`);
});

test("an odd error is a failure, and costs no slot", async (t) => {
  const kind = "odd:trans:notice";
  const stop = work(t, kind, async (job) => {
    switch (job.id) {
      case "without-text": throw Object.create(null);
      case "cut": throw new Error("x".repeat(1992) + "\u{1f600}");
      case "refused-snooze": throw new Snooze("5 parsecs");
      case "refused-retry": throw new Retry("busy", { after: "5 parsecs" });
      case "no-delay": throw new Snooze(1n as unknown as number);
    }
  }, { concurrency: 1 });
  const delays = ["refused-snooze", "refused-retry", "no-delay"];
  for (const id of ["without-text", "cut", ...delays, "last"]) {
    await client.schedule(`${kind}:${id}`);
  }
  await eventually("the last has run", async () => (await client.get(`${kind}:last`)) === null);
  await eventually("none runs", async () => (await client.count(`${kind}:`)).running === 0);
  await stop();
  assert.equal((await client.get(`${kind}:without-text`))?.lastError, "it has no text");
  assert.equal((await client.get(`${kind}:cut`))?.lastError, `Error: ${"x".repeat(1992)}\ufffd`);
  for (const id of delays) {
    const job = await client.get(`${kind}:${id}`);
    assert.equal(job?.state, "retrying");
    assert.match(job?.lastError ?? "", /^the delay of its handler was refused: /);
  }
  await client.cancelMany(`${kind}:`);
});

test("a saturated worker leaves nothing behind for each job", async (t) => {
  const kind = "saturated:trans:notice";
  const JOBS = 60;
  // How often each promise was given a reaction; `await` gives it one that nobody sees.
  const reactions = new Map<Promise<unknown>, number>();
  const { then } = Promise.prototype;
  t.after(() => {
    Promise.prototype.then = then;
  });
  Promise.prototype.then = function (this: Promise<unknown>, ...args: unknown[]) {
    reactions.set(this, (reactions.get(this) ?? 0) + 1);
    return Reflect.apply(then, this, args);
  } as unknown as typeof then;
  const waiting = Array.from({ length: JOBS }, (_, id) => `${kind}:${id}`);
  let done = 0;
  let worker: Worker | undefined;
  const daemon: typeof fetch = async (url, request) => {
    const path = new URL(String(url)).pathname;
    const { max, leases } = JSON.parse(String(request?.body)) as { max?: number; leases?: string[] };
    if (path === "/v1/pull") {
      const jobs = waiting.splice(0, max).map((key) => ({
        key, lease: key, lease_ms: 60_000, attempt: 1, max_attempts: 1, payload: null, headers: {},
      }));
      return Response.json({ jobs });
    }
    done += leases?.length ?? 0;
    if (done === JOBS) {
      worker?.stop();
    }
    return Response.json({ results: leases?.map((lease) => ({ lease, result: "done" })) });
  };
  worker = new Worker(new Client("http://daemon", { fetch: daemon }), { concurrency: 2 });
  await worker.on(kind, () => undefined).run();
  assert.equal(done, JOBS);
  assert.ok(Math.max(...reactions.values()) < JOBS / 4, "no promise collects reactions");
});

test("a long run keeps its lease", async (t) => {
  const kind = "long:trans:notice";
  const seen: number[] = [];
  const stop = work(t, kind, async (job) => {
    seen.push(job.attempt);
    await sleep(2.5 * job.leaseMs);
  });
  await client.schedule(`${kind}:1`);
  await eventually("it begins", () => seen.length > 0);
  await eventually("it ends", async () => (await client.get(`${kind}:1`)) === null);
  await stop();
  assert.deepEqual(seen, [1]);
});

test("a cancelled job is stopped", async (t) => {
  const kind = "cancelled:trans:notice";
  const reasons: string[] = [];
  const stop = work(t, kind, async (job) => {
    try {
      await sleep(PATIENCE, undefined, { signal: job.signal });
    } catch (error) {
      reasons.push((job.signal.reason as JobStopped).reason);
      throw error;
    }
  });
  await client.schedule(`${kind}:1`);
  await eventually("it runs", async () => (await client.count(`${kind}:`)).running === 1);
  assert.equal(await client.cancel(`${kind}:1`), "running");
  await eventually("the handler stops", () => reasons.length > 0);
  await eventually("the job is gone", async () => (await client.get(`${kind}:1`)) === null);
  await stop();
  assert.deepEqual(reasons, ["cancelled"]);
});

test("a worker never holds more than it can run", async (t) => {
  const kind = "few:trans:notice";
  let running = 0, most = 0, ended = 0, held = 0;
  await client.batch(Array.from({ length: 100 }, (_, id) => BatchCall.schedule(`${kind}:${id}`)));
  const stop = work(t, kind, async () => {
    most = Math.max(most, ++running);
    await sleep(10);
    running -= 1;
    ended += 1;
  }, { concurrency: 4 });
  await eventually("all have ended", async () => {
    const counts = await client.count(`${kind}:`);
    held = Math.max(held, counts.running);
    return (await left(client, kind)) === 0;
  });
  await stop();
  assert.equal(ended, 100);
  assert.ok(held <= 4 && most <= 4, `${held}, ${most}`);
});

test("a stop gives back what does not end", async (t) => {
  const kind = "stops:trans:notice";
  const seen: string[] = [];
  const stop = work(t, kind, async (job) => {
    seen.push(job.id);
    switch (job.id) {
      case "ends": return sleep(500);
      case "hears": return sleep(PATIENCE, undefined, { signal: job.signal });
      default: return sleep(PATIENCE, undefined, { ref: false });
    }
  }, { grace: 2_000, log: { warn: () => {}, error: () => {} } });
  for (const id of ["ends", "hears", "deaf"]) {
    await client.schedule(`${kind}:${id}`);
  }
  await eventually("all begin", () => seen.length === 3);
  await stop();
  assert.equal(await client.get(`${kind}:ends`), null);
  for (const id of ["hears", "deaf"]) {
    const job = await client.get(`${kind}:${id}`);
    assert.deepEqual([job?.state, job?.attempts], ["pending", 0], id);
  }
  await client.cancelMany(`${kind}:`);
});

test("a worker bears an outage", async (t) => {
  const own = await startDaemon(redis, { flags: ["--worker-lease", "1h"] });
  t.after(() => own.close());
  const kind = "outage:trans:notice";
  const seen: string[] = [];
  let letGo = (): void => {};
  const held = new Promise<void>((resolve) => (letGo = resolve));
  const stop = work(t, kind, async (job) => {
    seen.push(job.id);
    if (job.id === "before") await held;
  }, { log: { warn: () => {}, error: () => {} } }, own.url);
  const calls = new Client(own.url);
  await calls.schedule(`${kind}:before`);
  await eventually("it begins", () => seen.length > 0);
  await own.kill();
  letGo();
  await assert.rejects(new Client(own.url, { retries: 0 }).get(`${kind}:before`), (error) => {
    assert.ok(error instanceof KeyfallError);
    assert.deepEqual([error.code, error.retryable], ["unreachable", true]);
    return true;
  });
  await own.start();
  await calls.schedule(`${kind}:after`);
  for (const id of ["before", "after"]) {
    await eventually("both have ended", async () => (await calls.get(`${kind}:${id}`)) === null);
  }
  await stop();
  assert.deepEqual(seen, ["before", "after"]);
});

test("a lease that cannot be extended is lost", async (t) => {
  const own = await startDaemon(redis, QUICK);
  t.after(() => own.close());
  const kind = "lost:trans:notice";
  const seen: string[] = [];
  const stop = work(t, kind, async (job) => {
    if (job.attempt === 1) {
      await own.kill();
      await sleep(PATIENCE, undefined, { signal: job.signal }).catch(() => {});
    }
    const stopped = job.signal.reason as JobStopped | undefined;
    seen.push(`${job.attempt} ${stopped?.reason}`);
    job.signal.throwIfAborted();
  }, { log: { warn: () => {}, error: () => {} } }, own.url);
  const calls = new Client(own.url);
  await calls.schedule(`${kind}:1`);
  await eventually("the handler hears of it", () => seen.length > 0);
  await own.start();
  await eventually("another run ends", async () => (await calls.get(`${kind}:1`)) === null);
  await stop();
  assert.deepEqual(seen, ["1 lost", "2 undefined"]);
});

test("a worker whose token is revoked ends", async (t) => {
  const kind = "tokens:trans:notice";
  const file = join(redis.folder, "tokens.toml");
  const make = ["token", "make", "--file", file, "--scope", "schedule,consume", "--prefix", "tokens:"];
  const token = execFileSync(KEYFALL, make, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
  const own = await startDaemon(redis, { flags: ["--tokens-file", file] });
  t.after(() => own.close());
  const calls = new Client(own.url, { token });
  assert.equal((await calls.schedule(`${kind}:1`, null, { after: "1h" })).placed, "created");
  await assert.rejects(new Client(own.url).get(`${kind}:1`), { code: "unauthorized", retryable: false });
  await assert.rejects(calls.get(`${kind}:1`), { code: "forbidden", retryable: false });
  await calls.cancel(`${kind}:1`);
  const run = new Worker(calls).on(kind, () => {}).run();
  const revoke = ["token", "revoke", token.split("_")[1]!, "--file", file];
  execFileSync(KEYFALL, revoke, { stdio: "ignore" });
  await assert.rejects(run, { code: "unauthorized" });
});

test("a worker ends if it may not pull", async () => {
  await assert.rejects(new Worker(client).run(), /no handler/);
  assert.throws(() => new Worker(client).on("app1:trans", () => {}), /three segments/);
  const refused = new Worker(client).on("no app:trans:notice", () => {}).run();
  await assert.rejects(refused, { code: "invalid_key", field: "kinds" });
});

test("kills lose no job", async (t) => {
  const own = await startDaemon(redis, QUICK);
  t.after(() => own.close());
  const kind = "kills:trans:notice";
  const count = 300;
  const journal = join(own.folder, "journal");
  writeFileSync(journal, "");
  const program = fileURLToPath(new URL("journal-worker.js", import.meta.url));
  const start = (): ChildProcess =>
    spawn(process.execPath, [program, own.url, kind, journal], { stdio: "ignore" });
  const done = (): Set<string> =>
    new Set(readFileSync(journal, "utf8").split("\n").filter(Boolean).map((line) => line.split(" ")[0]!));
  const calls = new Client(own.url, { retries: 20 });
  const keys = Array.from({ length: count }, (_, id) => `${kind}:${id}`);
  const retry = { fixed: "1s", attempts: 99 };
  const results = await calls.batch(keys.map((key) => BatchCall.schedule(key, key, { retry })));
  assert.ok(results.every((result) => result.error === undefined));
  let worker = start();
  t.after(() => worker.kill("SIGKILL"));
  for (let part = 1; part < 6; part += 1) {
    await eventually(`part ${part} of the jobs`, () => done().size >= (part * count) / 7);
    worker.kill("SIGKILL");
    await once(worker, "exit");
    worker = start();
    if (part % 2 === 1) {
      await own.kill();
      await own.start();
    }
  }
  await eventually("no job is left", async () => (await left(calls, kind)) === 0);
  assert.equal((await calls.count(`${kind}:`)).dead, 0);
  worker.kill("SIGTERM");
  assert.deepEqual(await once(worker, "exit"), [0, null]);
  assert.deepEqual(done(), new Set(keys));
});
