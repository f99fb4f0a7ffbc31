// Repeats, errors and exact integers, without a daemon.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { BatchCall, Client, parseJson, writeJson } from "keyfall";

test("a call that may not be repeated is sent once", async () => {
  let sent = 0;
  const cut = async (): Promise<Response> => {
    sent += 1;
    throw new TypeError("fetch failed", { cause: { code: "ECONNRESET" } });
  };
  const calls = new Client("http://daemon", { retries: 2, fetch: cut });
  for (const [call, times] of [
    [() => calls.postponeMany("app1:", { by: "1h" }), 1],
    [() => calls.postponeMany("app1:", { after: "1h" }), 3],
    [() => calls.schedule("app1:trans:notice:1"), 3],
  ] as const) {
    sent = 0;
    await assert.rejects(call, { code: "no_answer" });
    assert.equal(sent, times);
  }
});

test("answers of other programs are told apart", async () => {
  const problem = { headers: { "content-type": "application/problem+json" } };
  for (const [answer, status, retryable] of [
    [() => new Response("<html>", { status: 200 }), 200, false],
    [() => new Response("bad gateway", { status: 502 }), 502, true],
    [() => new Response("{}", { ...problem, status: 404 }), 404, false],
  ] as const) {
    const calls = new Client("http://proxy", { retries: 0, fetch: async () => answer() });
    await assert.rejects(calls.get("app1:trans:notice:1"), { code: "not_keyfall", status, retryable });
  }
});

/** The answer of a daemon to lines. */
function ndjson(answers: object[]): Response {
  return new Response(answers.map((answer) => `${JSON.stringify(answer)}\n`).join(""));
}

function refused(line: number, code: string): object {
  return { line, status: 503, problem: { code, title: "no", detail: "no", status: 503, retryable: true } };
}

function lines(keys: string[]): BatchCall[] {
  return keys.map((key) => BatchCall.deleteLetter(key, 1));
}

test("a line that is always refused fails alone", async () => {
  const daemon: typeof fetch = async (_, request) => {
    const sent = String(request?.body).split("\n").slice(0, -1);
    return ndjson(sent.map((line, at) => {
      return line.includes("bad") ? refused(at + 1, "unavailable") : { line: at + 1, status: 200 };
    }));
  };
  const calls = new Client("http://daemon", { retries: 1, fetch: daemon });
  const keys = ["bad", ...Array.from({ length: 1200 }, (_, id) => String(id))];
  const [first, ...others] = await calls.batch(lines(keys.map((id) => `app1:trans:notice:${id}`)));
  assert.equal(first?.error?.code, "unavailable");
  assert.deepEqual(others.filter((one) => one.error !== undefined), []);
  assert.equal(others.length, 1200);
});

test("a request that always fails fails all lines", async () => {
  const cut = async (): Promise<Response> => {
    throw new TypeError("fetch failed", { cause: { code: "ECONNRESET" } });
  };
  const calls = new Client("http://daemon", { retries: 1, fetch: cut });
  const keys = Array.from({ length: 1200 }, (_, id) => `app1:trans:notice:${id}`);
  const results = await calls.batch(lines(keys));
  assert.equal(results.filter((one) => one.error?.code === "no_answer").length, 1200);
});

test("an answer to a line that was not sent is ignored", async () => {
  const daemon = async (): Promise<Response> => ndjson([{ line: 1, status: 200 }, refused(2, "stopping")]);
  const calls = new Client("http://daemon", { retries: 0, fetch: daemon });
  const [only] = await calls.batch(lines(["app1:trans:notice:1"]));
  assert.equal(only?.error, undefined);
});

test("a batch may take longer than a request, as long as answers come", async () => {
  const [TIMEOUT, LINES] = [2_000, 30];
  let requests = 0;
  const daemon: typeof fetch = async (_, request) => {
    requests += 1;
    async function* slowly(): AsyncGenerator<Uint8Array> {
      for (let line = 1; line <= LINES; line += 1) {
        await sleep(1.5 * TIMEOUT / LINES);
        request?.signal?.throwIfAborted();
        yield new TextEncoder().encode(`${JSON.stringify({ line, status: 200 })}\n`);
      }
    }
    return new Response(slowly());
  };
  const calls = new Client("http://daemon", { timeout: TIMEOUT, retries: 0, fetch: daemon });
  const keys = Array.from({ length: LINES }, (_, id) => `app1:trans:notice:${id}`);
  const results = await calls.batch(lines(keys));
  assert.deepEqual(results.filter((one) => one.error !== undefined), []);
  assert.equal(requests, 1);
});

test("integers are exact", () => {
  const text = '{"order":9007199254740993,"least":-9223372036854775808,"few":[1,1.5,1e21,-0.5],"text":"12345678901234567890 \\" 9007199254740993"}';
  const value = parseJson(text) as Record<string, unknown>;
  assert.equal(value["order"], 9007199254740993n);
  assert.equal(value["least"], -9223372036854775808n);
  assert.deepEqual(value["few"], [1, 1.5, 1e21, -0.5]);
  assert.equal(value["text"], '12345678901234567890 " 9007199254740993');
  assert.equal(writeJson(value).replace("1e+21", "1e21"), text);
  assert.equal(parseJson("18446744073709551616"), 18446744073709551616n);
});
