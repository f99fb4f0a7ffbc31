"""Reminds of orders, with redis-py and nothing else. pip install redis

    python3 reminders.py remind 42 '{"uid":7}' 900    in 15 minutes
    python3 reminders.py postpone 42 1800             in half an hour instead
    python3 reminders.py replace 42 '{"uid":8}' 900   with another payload
    python3 reminders.py cancel 42

A route that adopts app1:trans:notice:* makes jobs of these keys. REDIS_URL says where Redis is,
KIND which kind of job, if it is not app1:trans:notice.
"""

import os
import sys

import redis

KIND = os.environ.get("KIND", "app1:trans:notice")
db = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))


def remind(order, payload, seconds):
    return db.set(f"{KIND}:{order}", payload, ex=int(seconds))


def postpone(order, seconds):
    return db.expire(f"{KIND}:{order}", int(seconds))


def replace(order, payload, seconds):
    # xx: only what is still there. What is due by now is not scheduled once more.
    return db.set(f"{KIND}:{order}", payload, xx=True, ex=int(seconds))


def cancel(order):
    return db.delete(f"{KIND}:{order}")


call, order, *rest = sys.argv[1:]
calls = {"remind": remind, "postpone": postpone, "replace": replace, "cancel": cancel}
if call not in calls:
    sys.exit("remind, postpone, replace or cancel?")
done = calls[call](order, *rest)
said = "cancelled" if call == "cancel" else f"in {rest[-1]} s"
print(f"order {order}: {said if done else 'too late'}")
