// Takes jobs from an acknowledged stream. npm install redis; REDIS_URL=… node stream.mjs orders closers me
import { createClient } from "redis";

const [stream, group, me] = process.argv.slice(2);
const db = await createClient({ url: process.env.REDIS_URL }).connect();

async function closeOrder(job) {
  console.log("done", job.key, job.payload);
}

for (;;) {
  const from = [{ key: stream, id: ">" }];
  const read = await db.xReadGroup(group, me, from, { COUNT: 10, BLOCK: 1000 });
  for (const { messages } of read ?? []) {
    for (const { id, message: job } of messages) {
      try {
        await closeOrder(job);
      } catch (error) {
        // Not acknowledged, it comes again as the policy of its route says.
        console.error(job.key, error);
        continue;
      }
      await db.xAck(stream, group, id);
    }
  }
}
