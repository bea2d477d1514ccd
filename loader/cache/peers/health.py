"""The health of peers: their faults, and when an answer is late, after a multiple of what answers usually take."""

from collections import deque
from dataclasses import dataclass, field

from ...storage.cloud.http_connection import Place
from ...storage.requests import Limiter
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
"""Wrong pages within an hour for which a peer is left out."""


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
    left_out_until_s: float = 0.0
    left_out_s: float = 0.0
    """Seconds of the last exclusion; 0 while the peer is healthy."""
    limiter: Limiter = field(default_factory=lambda: Limiter(IN_FLIGHT))
    is_tested: bool = False
    """True while one request tests a peer that was left out."""
    lies_s: deque[float] = field(default_factory=lambda: deque(maxlen=LIES))


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
