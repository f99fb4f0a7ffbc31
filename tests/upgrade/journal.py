"""What was accepted, what ran, and what contradicts the promises."""

import collections
import threading
import time


class Journal:
    def __init__(self):
        self.lock = threading.Lock()
        self.accepted = {}  # key → its producer
        self.cancelled = {}  # key → when the cancel was acknowledged
        self.runs = collections.defaultdict(list)  # key → when each run began
        self.numbers = collections.defaultdict(set)  # recurring key → numbers that ran
        self.by = collections.Counter()

    def accepts(self, key, by):
        with self.lock:
            self.accepted[key] = by
            self.by[f"scheduled by {by}"] += 1

    def cancels(self, key):
        with self.lock:
            self.cancelled[key] = time.monotonic()
            self.by["cancelled"] += 1

    def run(self, key, way, number=None):
        with self.lock:
            self.runs[key].append(time.monotonic())
            self.by[f"runs by {way}"] += 1
            if number:
                self.numbers[key].add(int(number))

    def faults(self):
        """What contradicts the promises."""
        found = []
        lost = [key for key in self.accepted if not self.runs[key] and key not in self.cancelled]
        found += [f"lost: {key}, accepted by {self.accepted[key]}" for key in lost]
        for key, at in self.cancelled.items():
            if any(run >= at for run in self.runs[key]):
                found.append(f"ran after an acknowledged cancel: {key}")
        for key, numbers in self.numbers.items():
            missing = set(range(1, max(numbers) + 1)) - numbers
            if missing:
                found.append(f"occurrences of {key} that never ran: {sorted(missing)}")
        unknown = [key for key in self.runs if key not in self.accepted and key not in self.numbers]
        found += [f"ran, and nobody scheduled it: {key}" for key in unknown]
        return found
