"""Tasks of Celery with an `eta`, and one without: python celery_tasks.py PORT"""

import sys
from datetime import datetime, timedelta, timezone

from celery import Celery

app = Celery(broker=f"redis://127.0.0.1:{sys.argv[1]}/0")
due = datetime(2030, 1, 1, 9, 0, 0, 250000, tzinfo=timezone.utc)


@app.task(name="mail.welcome")
def welcome(*args, **kwargs):
    pass


@app.task(name="mail.remind")
def remind(*args, **kwargs):
    pass


welcome.apply_async(["a@example.org", 1.50], {"lang": "de"}, task_id="order-1", eta=due)
other_zone = (due + timedelta(minutes=1)).astimezone(timezone(timedelta(hours=2)))
welcome.apply_async(["ä"], task_id="order-2", eta=other_zone, priority=5)
remind.apply_async([[1, 2]], task_id="order-3", eta=due + timedelta(minutes=2))
welcome.apply_async([], task_id="ready")
