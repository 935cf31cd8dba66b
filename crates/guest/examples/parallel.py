"""Figure 1 (b): a job on n clones, each of which has everything that the parent has prepared. Counts primes.

    parallel.py [CLONES [LIMIT [hierarchical]]]
"""

import sys

import floe
from report import report

wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 4
limit = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
ticket = floe.request_ticket(wanted, hierarchical=sys.argv[3:] == ["hierarchical"])
# what is made here is in every clone's memory, so it need not be sent
composite = bytearray(limit + 1)
for p in range(2, int(limit**0.5) + 1):
    if not composite[p]:
        for q in range(p * p, limit + 1, p):
            composite[q] = 1
me = floe.clone(ticket)
if me:
    # there may be fewer clones than requested: divide by what was granted
    part = limit // ticket.clones + 1
    first = part * (me - 1)
    count = sum(1 for n in range(max(first, 2), min(first + part, limit + 1)) if not composite[n])
    report(f"parallel {me} of {ticket.clones}: {count} primes from {first}")
    floe.exit()
ended, lost = floe.join(ticket)
report(f"parallel 0: {ended} of {ticket.running} machines ended, {lost} lost")
sys.exit(lost != 0)
