// Delayed jobs of BullMQ, and others that an import leaves out: node bullmq.mjs PORT
import { Queue } from 'bullmq'

const timestamp = Date.now()
const due = Date.parse('2030-01-01T09:00:00.250Z')
const later = (seconds) => ({ timestamp, delay: due + 1000 * seconds - timestamp })
const queue = new Queue('mail', { connection: { host: '127.0.0.1', port: Number(process.argv[2]) } })
await queue.add('welcome', { to: 'a@example.org', amount: 1.5 }, { jobId: 'order-1', ...later(0) })
await queue.add('welcome', 'ä', { jobId: 'order-2', ...later(60), attempts: 3, priority: 5 })
await queue.add('remind', [1, 2], { jobId: 'order-3', ...later(120) })
await queue.add('welcome', {}, { jobId: 'ready' })
await queue.upsertJobScheduler('daily', { pattern: '0 9 * * *' }, { name: 'welcome', data: {} })
await queue.close()
