"""A program clones the whole machine that it runs in (SnowFlock, table 1), or has it go on elsewhere (AMPhone, section 5.3).

    import floe

    ticket = floe.request_ticket(8)       # room for at most 8 clones
    me = floe.clone(ticket)               # 0 in the parent, 1..m in the clones
    if me:
        work(me)
        floe.exit()                       # a clone ends with its work
    floe.join(ticket)                     # the parent waits for all of them

Every call blocks until its answer has come or its time limit has passed, and raises floe.Error (with .code, one of the codes in
docs/guest.md) if it failed. It uses the same protocol as libfloe, without C: one line each way over the agent's socket.
"""

import os
import re
import socket
import sys
import time

__version__ = "0.1.0"
__all__ = ["Error", "Ticket", "request_ticket", "clone", "exit", "join", "kill", "whoami", "offload", "recall", "generation"]

SOCKET_PATH = "/run/floe.sock"
#: The file that says which generation of itself the machine is. It is replaced: whoever watches it watches its directory.
GENERATION_PATH = "/run/floe.generation"
#: How long calls other than join wait, in seconds; None waits forever.
timeout_s = 180.0

_LINE_BYTES_MAX = 2048
# In a hierarchical clone: a list of pids in the process that has forked, () in those that it forked. None in other processes.
_workers = None


class Error(Exception):
    """Why a call failed; `code` is for programs."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Ticket:
    """The right to clone once, for `clones` clones, of which `each` are processes of one machine."""

    def __init__(self, id, clones, each):
        self.id, self.clones, self.each = id, clones, each
        #: Number of machines that run; set by clone() in the parent.
        self.running = 0

    def __repr__(self):
        return f"Ticket({self.id!r}, clones={self.clones}, each={self.each})"


def _call(verb, expected, limit_s, **fields):
    """Makes one call and returns the keys of its answer."""
    path = os.environ.get("FLOE_SOCKET") or SOCKET_PATH
    words = [verb, "version=1"] + [f"{key.replace('_', '-')}={value}" for key, value in fields.items()]
    line = " ".join(words) + "\n"
    until = None if limit_s is None else time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        try:
            agent.connect(path)
            agent.sendall(line.encode("ascii"))
        except OSError as error:
            raise Error("no-agent", f"{path}: {error}; does floe-guest run, and may this user use it?") from None
        answer = b""
        while not answer.endswith(b"\n"):
            if until is not None:
                left = until - time.monotonic()
                if left <= 0:
                    raise Error("timeout", f"no answer within {limit_s} s; what was asked for may still happen")
                agent.settimeout(left)
            try:
                more = agent.recv(_LINE_BYTES_MAX)
            except TimeoutError:
                continue
            if not more:
                raise Error("no-agent", "the agent hung up")
            answer += more
            if len(answer) > _LINE_BYTES_MAX:
                raise Error("failed", "the agent's answer is too long")
    said, *parts = answer.decode("ascii", "ignore").strip().split(" ")
    keys = {}
    for part in parts:
        key, _, value = part.partition("=")
        keys[key] = _unescape(value)
    if said == "refused":
        text = "; ".join(part for part in (keys.get("message"), keys.get("fix")) if part)
        raise Error(keys.get("code", "failed"), text)
    if said != expected:
        raise Error("failed", "the agent's answer can't be understood")
    return keys


def _unescape(value):
    plain = re.sub(b"%([0-9A-F]{2})", lambda escaped: bytes.fromhex(escaped[1].decode()), value.encode("ascii"))
    return plain.decode("utf-8", "replace")


def _id(ticket):
    if not re.fullmatch("[0-9a-f]{1,63}", ticket.id):
        raise Error("unknown-ticket", "this is no ticket; request_ticket gives one")
    return ticket.id


def request_ticket(n, hierarchical=False):
    """Requests room for n clones. Fewer may be granted: see the ticket's `clones`.

    With hierarchical set, clones are processes: each cloned machine has as many of them as it has processors.
    """
    keys = _call("ticket", "ticket", timeout_s, clones=int(n), hierarchical=int(bool(hierarchical)))
    return Ticket(keys["ticket"], int(keys["clones"]), int(keys["each"]))


def clone(ticket):
    """Clones the machine. Returns 0 in the parent, the clone's number in each clone."""
    sys.stdout.flush()  # otherwise every clone would write what is buffered
    sys.stderr.flush()
    keys = _call("clone", "cloned", timeout_s, ticket=_id(ticket))
    me = int(keys["id"])
    if me == 0:
        ticket.running = int(keys.get("clones", 0))
        return 0
    return _spread(ticket, me) if ticket.each > 1 else me


def _spread(ticket, machine):
    """Forks the processes of a hierarchical clone: this one has the first number, the forked ones have the others."""
    global _workers
    first = (machine - 1) * ticket.each + 1
    last = min(machine * ticket.each, ticket.clones)
    pids = []
    for me in range(first + 1, last + 1):
        pid = os.fork()
        if pid == 0:
            _workers = ()
            return me
        pids.append(pid)
    _workers = pids
    return first


def exit():
    """Ends this clone; it does not return. In a hierarchical clone the process ends, and the machine after its last process."""
    sys.stdout.flush()
    sys.stderr.flush()
    if _workers == ():
        os._exit(0)
    for pid in _workers or ():
        os.waitpid(pid, 0)
    _call("exit", "done", timeout_s)
    while True:  # until the machine is removed
        time.sleep(3600)


def join(ticket, timeout=None):
    """Waits at most `timeout` seconds until all clones of a ticket have ended. Returns how many there were, and how many of
    them crashed. The ticket is then used up."""
    if timeout is None:
        keys = _call("join", "done", None, ticket=_id(ticket))
    else:
        keys = _call("join", "done", timeout + 30, ticket=_id(ticket), timeout_ms=int(timeout * 1000))
    return int(keys["ended"]), int(keys["lost"])


def kill(ticket):
    """Ends all clones of a ticket at once and returns their number. The ticket is then used up, even if it was unused."""
    return int(_call("kill", "done", timeout_s, ticket=_id(ticket))["ended"])


def whoami():
    """Returns which machine this is: its number (0 if it is no clone), its name, its parent's name."""
    keys = _call("whoami", "me", timeout_s)
    return int(keys["id"]), keys["machine"], keys["parent"]


def offload(to=None, timeout=None, cpus=None, memory_bytes=None):
    """Lends this machine to another node of its cluster, where it goes on: the one of this name or address, or the only other one.

    Returns that node's name, there; all that runs in the machine goes on there. Raises Error where the machine was if it could not move.
    It has as many processors and as much memory there (whole MiB) as are given, or as here. It may get them only a moment after this has
    returned, and does not get what that node has no room for.
    """
    if to is not None and not re.fullmatch("[A-Za-z0-9._:/-]{1,255}", to):
        raise Error("usage", "this is no node's name; floe cluster members on the host lists them")
    sys.stdout.flush()
    sys.stderr.flush()
    size = {key: int(value) for key, value in (("cpus", cpus), ("memory_bytes", memory_bytes)) if value is not None}
    return _call("offload", "moved", timeout, **({} if to is None else {"to": to}), **size)["node"]


def recall(timeout=None):
    """Has this machine go on on the node that it comes from, as large as it was there, and returns that node's name, there."""
    sys.stdout.flush()
    sys.stderr.flush()
    return _call("recall", "moved", timeout)["node"]


def generation():
    """Returns which generation of itself this machine is: a number that rises, and an id that is another one in every copy.

    It changes in a clone, in a machine from an image and in one that was woken. A program that draws random numbers by itself compares
    the id with the one that it has kept, and seeds itself anew if it differs. This reads a file and asks nobody.
    """
    try:
        with open(GENERATION_PATH, encoding="ascii", errors="replace") as file:
            keys = dict(line.rstrip("\n").partition("=")[::2] for line in file)
        return int(keys["number"]), keys["id"]
    except OSError as error:
        raise Error("no-agent", f"{error}; does floe-guest run?") from None
    except (KeyError, ValueError):
        raise Error("failed", f"{GENERATION_PATH} can't be understood") from None
