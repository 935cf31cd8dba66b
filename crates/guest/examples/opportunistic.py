"""Figure 1 (d): a job that repeatedly uses whatever room there is, until it is done.

    opportunistic.py [PIECES [AT-ONCE]]
"""

import sys
import time

import floe
from report import report

pieces = int(sys.argv[1]) if len(sys.argv) > 1 else 8
at_once = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
done = 0
while done < pieces:
    try:
        ticket = floe.request_ticket(min(pieces - done, at_once))
    except floe.Error as error:
        if error.code != "no-room":
            raise
        time.sleep(1)  # others use all of it
        continue
    me = floe.clone(ticket)
    if me:
        report(f"opportunistic: piece {done + me} is done")
        floe.exit()
    _, lost = floe.join(ticket)
    if not lost and ticket.running == ticket.clones:
        done += ticket.clones  # otherwise repeat these pieces: it is unknown which are missing
report(f"opportunistic 0: {done} pieces are done")
