// Takes jobs from an acknowledged list. npm install redis; REDIS_URL=… node list.mjs orders
import { createClient } from "redis";

const list = process.argv[2];
const db = await createClient({ url: process.env.REDIS_URL }).connect();

async function closeOrder(job) {
  console.log("done", job.key, JSON.stringify(job.payload));
}

for (;;) {
  const taken = await db.blPop(list, 1);
  if (!taken) continue;
  const job = JSON.parse(taken.element);
  try {
    await closeOrder(job);
  } catch (error) {
    // Not acknowledged, it comes again when its lease is over.
    console.error(job.key, error);
    continue;
  }
  await db.rPush(`${list}:done`, job.lease);
}
