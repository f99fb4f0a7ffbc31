// Schedules a payment notice, and runs a worker that delivers it; Ctrl-C ends it.
// Start `keyfall dev` and `keyfall serve`, compile this file, and run it with Node.

import { Bury, Client, Retry, Worker } from "keyfall";

const { KEYFALL_API: url = "http://127.0.0.1:9276", KEYFALL_TOKEN: token } = process.env;
const client = new Client(url, token === undefined ? {} : { token });
const worker = new Worker(client, { concurrency: 10 });

worker.on("app1:trans:notice", async (job) => {
  const { shop } = job.payload as { shop: string };
  console.log(`order ${job.id}, attempt ${job.attempt}: the shop is ${shop}`);
  if (shop === "busy" && job.attempt === 1) {
    throw new Retry("the shop answered 503", { after: "1s" });
  }
  if (shop === "closed") {
    throw new Bury("the shop answered 404");
  }
});

for (const [index, shop] of ["open", "busy", "closed"].entries()) {
  const order = 41 + index;
  const { due } = await client.schedule(`app1:trans:notice:${order}`, { shop }, { after: "500ms" });
  console.log(`order ${order} is due at ${due.toISOString()}`);
}

await worker.run({ signals: true });
