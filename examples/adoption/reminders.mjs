// Reminds of orders, with node-redis and nothing else. npm install redis
//
//   node reminders.mjs remind 42 '{"uid":7}' 900    in 15 minutes
//   node reminders.mjs postpone 42 1800             in half an hour instead
//   node reminders.mjs replace 42 '{"uid":8}' 900   with another payload
//   node reminders.mjs cancel 42
//
// A route that adopts app1:trans:notice:* makes jobs of these keys. REDIS_URL says where Redis is,
// KIND which kind of job, if it is not app1:trans:notice.
import { createClient } from "redis";

const kind = process.env.KIND ?? "app1:trans:notice";
const db = await createClient({ url: process.env.REDIS_URL }).connect();

const inSeconds = (seconds) => ({ expiration: { type: "EX", value: Number(seconds) } });

const remind = (order, payload, seconds) =>
  db.set(`${kind}:${order}`, payload, inSeconds(seconds));

const postpone = (order, seconds) => db.expire(`${kind}:${order}`, Number(seconds));

// XX: only what is still there. What is due by now is not scheduled once more.
const replace = (order, payload, seconds) =>
  db.set(`${kind}:${order}`, payload, { condition: "XX", ...inSeconds(seconds) });

const cancel = (order) => db.del(`${kind}:${order}`);

const [call, order, ...rest] = process.argv.slice(2);
const calls = { remind, postpone, replace, cancel };
if (!(call in calls)) {
  console.error("remind, postpone, replace or cancel?");
  process.exit(2);
}
const done = await calls[call](order, ...rest);
const said = call === "cancel" ? "cancelled" : `in ${rest.at(-1)} s`;
console.log(`order ${order}: ${done ? said : "too late"}`);
await db.close();
