// BullMQ: `addBulk`, or `add` with 64 calls at a time, and a worker with its own connection, `concurrency` for
// work that waits, and `removeOnComplete`, as its guide for production says.
import { openSync, writeSync } from 'node:fs'
import { Queue, Worker } from 'bullmq'

const [what, port, count, first, step] = process.argv.slice(2)
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null }
if (what !== 'work') {
  const queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true } })
  await queue.waitUntilReady()
  const job = (number) => {
    const due = Number(first) + number * Number(step)
    const timestamp = Date.now()
    const opts = { jobId: `${first}-${number}`, timestamp, delay: due - timestamp }
    return { name: 'job', data: { due, text: 'x'.repeat(180) }, opts }
  }
  const numbers = [...Array(Number(count)).keys()]
  const began = performance.now()
  if (what === 'many') {
    for (let start = 0; start < count; start += 500) {
      await queue.addBulk(numbers.slice(start, start + 500).map(job))
    }
  } else {
    const caller = async () => {
      for (let number = numbers.pop(); number !== undefined; number = numbers.pop()) {
        const { name, data, opts } = job(number)
        await queue.add(name, data, opts)
      }
    }
    await Promise.all(Array.from({ length: 64 }, caller))
  }
  console.log((performance.now() - began) / 1000)
  await queue.close()
} else {
  const log = openSync(process.env.COMPARE_LOG, 'a')
  const handle = async (job) => {
    writeSync(log, `${job.data.due} ${performance.timeOrigin + performance.now()}\n`)
  }
  new Worker('bench', handle, { connection, concurrency: 50 })
}
