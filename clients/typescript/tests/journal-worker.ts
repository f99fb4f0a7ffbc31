// A worker in a process of its own: it writes each job into a journal, and then it is done.
// Arguments: URL, kind, journal.

import { appendFileSync } from "node:fs";

import { Client, Worker } from "keyfall";

const [url, kind, journal] = process.argv.slice(2) as [string, string, string];
const worker = new Worker(new Client(url), { concurrency: 8 });
worker.on(kind, (job) => appendFileSync(journal, `${job.key} ${job.attempt}\n`));
await worker.run({ signals: true });
