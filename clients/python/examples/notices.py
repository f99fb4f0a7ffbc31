"""Schedules a payment notice, and runs a worker that delivers it; Ctrl-C ends it.

Start `keyfall dev` and `keyfall serve`, then `python notices.py`.
"""

import os

import keyfall

client = keyfall.Client(
    os.environ.get("KEYFALL_API", "http://127.0.0.1:9276"),
    token=os.environ.get("KEYFALL_TOKEN"),
)
worker = keyfall.Worker(client, concurrency=10)


@worker.on("app1:trans:notice")
def deliver(job: keyfall.PulledJob) -> None:
    shop = job.payload["shop"]
    print(f"order {job.id}, attempt {job.attempt}: the shop is {shop}", flush=True)
    if shop == "busy" and job.attempt == 1:
        raise keyfall.Retry("the shop answered 503", after="1s")
    if shop == "closed":
        raise keyfall.Bury("the shop answered 404")


for order, shop in enumerate(["open", "busy", "closed"], start=41):
    scheduled = client.schedule(f"app1:trans:notice:{order}", {"shop": shop}, after="500ms")
    print(f"order {order} is due at {scheduled.due:%H:%M:%S}")

worker.run(signals=True)
