// The library of Standard Webhooks verifies the callbacks of the daemon.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client } from "keyfall";

import { freePort, startDaemon, startRedis } from "./site.js";

for (const isGenuine of [true, false]) {
  test(`a callback is ${isGenuine ? "verified" : "refused"}`, async (t) => {
    const redis = await startRedis();
    t.after(() => redis.close());
    const port = await freePort();
    const secrets = [0, 1].map(() => `whsec_${randomBytes(32).toString("base64")}`);
    const receiver = spawn(process.execPath, [fileURLToPath(new URL("receiver.js", import.meta.url))], {
      stdio: ["ignore", "pipe", "inherit"],
      env: { ...process.env, HOOK_SECRET: secrets[isGenuine ? 0 : 1], PORT: `${port}` },
    });
    t.after(() => receiver.kill());
    const config = `
[[route]]
pattern = "app1:trans:notice:*"
target = { http = { url = "http://127.0.0.1:${port}/", secret_env = "SIGNING_SECRET" } }
retry = "200ms 200ms 200ms 200ms 200ms 200ms 200ms 200ms 200ms"
`;
    const daemon = await startDaemon(redis, { config, environment: { SIGNING_SECRET: secrets[0]! } });
    t.after(() => daemon.close());
    const client = new Client(daemon.url);
    await client.schedule("app1:trans:notice:1", { order: 42 });
    const [line] = (await once(createInterface(receiver.stdout!), "line")) as [string];
    const wanted = isGenuine
      ? 'app1:trans:notice:1 {"order":42}'
      : "refused: WebhookVerificationError: No matching signature found";
    assert.equal(line, wanted);
  });
}
