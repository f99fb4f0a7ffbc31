// Beats for a host, with node-redis and nothing else: whoever hears nothing of it for so long is
// told by a job, on a route that adopts app1:host:silent:*. npm install redis
//
//   node heartbeat.mjs web-1 30    beats every 10 s; silence is 30 s without a beat
//
// REDIS_URL says where Redis is, KIND which kind of job, if it is not app1:host:silent.
import { createClient } from "redis";

const [host, silence] = [process.argv[2], Number(process.argv[3])];
const key = `${process.env.KIND ?? "app1:host:silent"}:${host}`;
const db = createClient({ url: process.env.REDIS_URL });
// Redis may be away for a moment; the next beat is soon.
const tell = (error) => console.error(error.message);
await db.on("error", tell).connect();

// A beat is EXPIRE. Where it finds no key, this is the first beat, or that of a host which was
// silent for a while.
async function beat() {
  if (!(await db.expire(key, silence))) {
    const expiration = { type: "EX", value: silence };
    await db.set(key, JSON.stringify({ host }), { expiration });
  }
}

await beat();
console.log(`${host} beats`);
const beats = setInterval(() => beat().catch(tell), (silence * 1000) / 3);

// Who stops on purpose is not silent.
async function retire() {
  clearInterval(beats);
  await db.del(key);
  await db.close();
  console.log(`${host} is retired`);
}
process.on("SIGINT", retire).on("SIGTERM", retire);
