"""The health of peers: their faults, when an answer is late, and the probes that end an exclusion.

An answer is late after a multiple of what answers usually take. A node that was late because it is busy soon answers
again: if it were left out for a fixed time, its pages would leave the bucket again.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...storage.cloud.http_connection import Place
from ...storage.requests import Limiter, RetryBudget
from .connection import IdleConnections

LATE_S = 0.25
"""Seconds after which an answer is late, if the peers' usual time is short."""
LATE_FACTOR = 3.0
"""An answer is late after this many times the peers' 99th percentile."""
CONGESTED_FACTOR = 3.0
"""While more than half of the peers are late, the network is busy: wait this many times as long."""
MOST_WAIT_S = 2.0
"""Longest deadline of a request, in a busy network too."""
LATENCIES = 512
"""Newest answers whose times give the 99th percentile."""
SORT_ANSWERS = 64
"""Answers after which the 99th percentile is computed anew: sorting takes longer than an answer."""

IN_FLIGHT = 4
"""Most calls of this process to one peer at a time, halved after a fault. Without a bound a burst of reads opens more
connections than a server accepts, and its peers leave it out."""
LIES = 3
"""Wrong pages within LIES_S for which a peer is left out."""
LIES_S = 3600.0
PAUSES = RetryBudget(base_s=0.05, cap_s=0.25)
"""The pause between a peer's fault and the read of the bucket. All readers find a dead peer at once: they must not all
ask the bucket at once."""
PROBE_S = 0.25
"""Seconds between a fault of a healthy peer and the first probe. A node that was only busy answers it."""
RELAPSE_S = 10.0
"""A fault this soon after a probe was answered is a relapse: a server may answer probes while its disk fails."""
LEFT_OUT_S = 5.0
"""Least seconds before the first probe after a relapse."""
LEFT_OUT_MOST_S = 60.0
"""Most seconds between two probes of a peer."""

# From the operating system: a training script may have seeded the other one, alike on all ranks.
system_random = random.SystemRandom().random


class PeerFault(OSError):
    """A peer did not answer as it should.

    is_unsent: no byte of the request has left. is_known: the peer was left out before.
    """

    is_unsent = False
    is_known = False


@dataclass(slots=True)
class Peer:
    """State of one peer. Guarded by the client's lock."""

    place: Place
    idle: IdleConnections
    is_left_out: bool = False
    """True from a fault until a probe is answered in time."""
    pause_s: float = 0.0
    """Seconds before the next probe."""
    back_s: float = -RELAPSE_S
    """When a probe was last answered in time."""
    liar_until_s: float = 0.0
    """End of the exclusion for wrong pages, which no probe ends."""
    limiter: Limiter = field(default_factory=lambda: Limiter(IN_FLIGHT))
    lies_s: deque[float] = field(default_factory=lambda: deque(maxlen=LIES))

    def exclude(self, now_s: float) -> bool:
        """Note a fault; return whether the peer was healthy for long before it."""
        self.is_left_out = True
        if now_s - self.back_s >= RELAPSE_S:
            self.pause_s = PROBE_S
            return True
        longer_s = max(LEFT_OUT_S, 2 * self.pause_s)
        self.pause_s = min(LEFT_OUT_MOST_S, longer_s)
        return False

    def note_silence(self) -> None:
        """Note that a probe was not answered in time."""
        self.pause_s = min(LEFT_OUT_MOST_S, 2 * self.pause_s)

    def readmit(self, now_s: float) -> None:
        """Note that a probe was answered in time."""
        self.is_left_out = False
        self.back_s = now_s

    def note_lie(self, now_s: float) -> bool:
        """Note a wrong page; return whether the peer is left out for it."""
        self.lies_s.append(now_s)
        is_liar = len(self.lies_s) == LIES and now_s - self.lies_s[0] < LIES_S
        if is_liar:
            self.liar_until_s = now_s + LIES_S
        return is_liar


class Probes:
    """Probes peers that are left out, in a thread that ends when none is left out. Thread-safe.

    probe: asks a peer; returns the seconds until its next probe, None if it is back.
    """

    def __init__(self, probe: Callable[[str], float | None]) -> None:
        self._probe = probe
        self._due_s: dict[str, float] = {}  # address -> time of the next probe
        self._changed = threading.Condition()
        self._is_running = False
        self._is_closed = False

    def add(self, address: str, pause_s: float) -> None:
        """Probe a peer after a pause."""
        with self._changed:
            if self._is_closed:
                return
            self._due_s[address] = time.monotonic() + pause_s
            if self._is_running:
                self._changed.notify()
                return
            self._is_running = True
        thread = threading.Thread(target=self._run, name="penstock-cache-probes", daemon=True)
        thread.start()

    def close(self) -> None:
        """Probe no peer any more."""
        with self._changed:
            self._is_closed = True
            self._due_s.clear()
            self._changed.notify()

    def _run(self) -> None:
        """Probe peers, each when it is due, until none is left; the thread's body."""
        while True:
            address = self._next_address()
            if address is None:
                return
            pause_s = self._probe(address)
            if pause_s is not None:
                self.add(address, pause_s)

    def _next_address(self) -> str | None:
        """Wait until a probe is due, and return its address; None without one: the thread ends."""
        with self._changed:
            while self._due_s:
                address = min(self._due_s, key=self._due_s.__getitem__)
                wait_s = self._due_s[address] - time.monotonic()
                if wait_s <= 0:
                    del self._due_s[address]
                    return address
                self._changed.wait(wait_s)
            self._is_running = False
            return None


class Deadlines:
    """The deadline of answers. Its caller has a lock. late_s: no answer is late before."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.least_s = max(LATE_S, late_s)
        self.late_s = self.least_s
        """Seconds that an answer may take."""
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES)
        self._answers = 0

    def add(self, seconds: float) -> bool:
        """Note the time of an answer; return whether `update` is due."""
        self._latencies_s.append(seconds)
        self._answers += 1
        return self._answers % SORT_ANSWERS == 0

    def update(self, n_late: int, n_peers: int) -> None:
        """Set the deadline. n_late: peers whose last answer was late, or that have another fault."""
        usual_s = 0.0
        if self._latencies_s:
            ordered = sorted(self._latencies_s)
            usual_s = ordered[int(0.99 * (len(ordered) - 1))]
        late_s = max(self.least_s, LATE_FACTOR * usual_s)
        if 2 * n_late > n_peers > 1:
            late_s *= CONGESTED_FACTOR
        self.late_s = min(MOST_WAIT_S, late_s)
