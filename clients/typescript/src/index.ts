/**
 * Schedules and runs delayed jobs over the HTTP API of Keyfall.
 *
 * ```ts
 * import { Client, Worker } from "keyfall";
 *
 * const client = new Client("http://127.0.0.1:9276");
 * await client.schedule("app1:trans:notice:42", { order: 42 }, { after: "15m" });
 *
 * const worker = new Worker(client, { concurrency: 10 });
 * worker.on("app1:trans:notice", async (job) => console.log(job.id, job.payload));
 * await worker.run({ signals: true });
 * ```
 *
 * @module
 */

export type * from "./answers.js";
export { BatchCall, type BatchResult } from "./batch.js";
export type { PullOptions } from "./calls.js";
export { Client, type ClientOptions } from "./client.js";
export { Bury, JobStopped, KeyfallError, type Problem, Retry, Snooze } from "./errors.js";
export { type Json, parseJson, writeJson } from "./json.js";
export type * from "./options.js";
export { type JobHandler, Worker, type WorkerJob, type WorkerLog, type WorkerOptions } from "./worker.js";
