"""Prints all data of a Redis as commands that write them again, in JSON: record.py PORT

A text that is not UTF-8 becomes {"base64": …}. Due times that libraries derive from the clock keep
what they are: the test knows them.
"""

import base64
import json
import sys

from redis import Redis

redis = Redis(port=int(sys.argv[1]))


def text(of):
    try:
        return of.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(of).decode()}


def command(key):
    kind = redis.type(key)
    if kind == b"string":
        return ["SET", key, redis.get(key)]
    if kind == b"list":
        return ["RPUSH", key, *redis.lrange(key, 0, -1)]
    if kind == b"set":
        return ["SADD", key, *sorted(redis.smembers(key))]
    if kind == b"zset":
        members = redis.zrange(key, 0, -1, withscores=True)
        return ["ZADD", key, *(part for name, score in members for part in (repr(score).encode(), name))]
    if kind == b"hash":
        return ["HSET", key, *(part for pair in sorted(redis.hgetall(key).items()) for part in pair)]
    return None


commands = [command(key) for key in sorted(redis.keys())]
commands = [[part if isinstance(part, str) else text(part) for part in it] for it in commands if it]
print(json.dumps(commands, indent=1, ensure_ascii=False))
