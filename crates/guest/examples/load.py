"""Figure 1 (c): one clone more when there is much to do, one fewer when there is little. Lines `high` and `low` on its
input give the load; the end of the input ends all workers."""

import random
import signal
import sys

import floe
from report import report

workers, number = [], 0
for line in sys.stdin:
    if line.startswith("high"):
        ticket, number = floe.request_ticket(1), number + 1
        if floe.clone(ticket):
            report(f"load: worker {number} is ready")
            while True:
                signal.pause()
        workers.append(ticket)
    elif line.startswith("low") and workers:
        floe.kill(workers.pop(random.randrange(len(workers))))
    report(f"load 0: {len(workers)} workers")
for ticket in workers:
    floe.kill(ticket)
report("load 0: done")
