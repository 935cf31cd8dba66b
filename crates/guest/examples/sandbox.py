"""Figure 1 (a): untrusted code runs in a clone, which is ended afterwards."""

import os
import sys

import floe
from report import report

untrusted = sys.argv[1] if len(sys.argv) > 1 else "rm -rf /etc /bin/sh; echo harm is done"
ticket = floe.request_ticket(1)
me = floe.clone(ticket)
if me:
    report(f"sandbox {me}: the command ended with {os.system(untrusted)}")
    floe.exit()
ended, _ = floe.join(ticket)
report(f"sandbox 0: {ended} clone is gone, and /etc is {'still here' if os.path.exists('/etc') else 'gone too'}")
