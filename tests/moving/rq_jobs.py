"""Scheduled jobs of rq, pickled and as JSON, and one that is ready: python rq_jobs.py PORT"""

import sys
from datetime import datetime, timedelta, timezone

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

redis = Redis(port=int(sys.argv[1]))
queue = Queue("mail", connection=redis)
in_json = Queue("mail", connection=redis, serializer=JSONSerializer)
due = datetime(2030, 1, 1, 9, 0, 0, tzinfo=timezone.utc)

queue.enqueue_at(due, "mail.welcome", "a@example.org", 1.50, lang="de", job_id="order-1")
in_json.enqueue_at(due + timedelta(minutes=1), "mail.welcome", "ä", job_id="order-2")
queue.enqueue_at(due + timedelta(minutes=2), "mail.remind", [1, 2], job_id="order-3")
queue.enqueue_at(due, "mail.welcome", datetime(2030, 1, 1), job_id="pickled")
queue.enqueue("mail.welcome", job_id="ready")
