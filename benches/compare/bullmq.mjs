// BullMQ: `addBulk`, and a worker with its own connection, `concurrency` for work that waits, and
// `removeOnComplete`, as its guide for production says.
import { appendFileSync } from 'node:fs'
import { Queue, Worker } from 'bullmq'

const [what, port, count, first, step] = process.argv.slice(2)
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null }
if (what === 'schedule') {
  const queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true } })
  await queue.waitUntilReady()
  const began = performance.now()
  for (let start = 0; start < count; start += 500) {
    const timestamp = Date.now()
    const jobs = []
    for (let number = start; number < Math.min(start + 500, count); number++) {
      const due = Number(first) + number * Number(step)
      const opts = { jobId: `${first}-${number}`, timestamp, delay: due - timestamp }
      jobs.push({ name: 'job', data: { due, text: 'x'.repeat(180) }, opts })
    }
    await queue.addBulk(jobs)
  }
  console.log((performance.now() - began) / 1000)
  await queue.close()
} else {
  const handle = async (job) => {
    appendFileSync(process.env.COMPARE_LOG, `${job.data.due} ${performance.timeOrigin + performance.now()}\n`)
  }
  new Worker('bench', handle, { connection, concurrency: 50 })
}
