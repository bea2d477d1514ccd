"""Which fault befalls a request: drawn from the world's seed and the request's number, so that each can be left out."""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

KINDS = ("ambiguous", "storms", "torn", "late", "truncated", "flips", "clocks", "kills", "stalls")
"""ambiguous: the answer is an error, and the write has happened, or has not, or happens a moment later. storms: many
requests in a row are refused. torn: a listing lacks some keys, each of them once. late: a listing shows what was a
moment ago. truncated: bytes are missing at the end; flips: one bit is another; both once per object. clocks: those of
collectors jump, those of others are off. kills: a process ends for good. stalls: a process shows no life for days."""
WRITES = ("put", "put_if_absent", "put_file", "delete_many")
READS = ("get", "get_range", "get_ranges")
OF = {
    "ambiguous": WRITES,
    "torn": ("list",),
    "late": ("list",),
    "truncated": ("get",),
    "flips": READS,
    "kills": (*WRITES, *READS, "list", "head"),
    "stalls": (*WRITES, *READS, "list"),
}
RATES = {
    "ambiguous": (0.0, 0.03, 0.1),
    "torn": (0.0, 0.1, 0.4),
    "late": (0.0, 0.1, 0.4),
    "truncated": (0.0, 0.01, 0.03),
    "flips": (0.0, 0.01, 0.05),
    "kills": (0.0, 0.001, 0.005),
    "stalls": (0.0, 0.001, 0.003),
}


@dataclass
class Faults:
    """kinds: which there are at all; only: numbers of the requests that may be befallen, None for all. seen: (number of
    the request, kind, words), in order."""

    seed: object
    kinds: Collection[str] = KINDS
    only: Collection[int] | None = None
    seen: list[tuple[int, str, str]] = field(default_factory=list)
    calm: bool = False
    missed: set[str] = field(default_factory=set)
    flipped: set[str] = field(default_factory=set)
    storm_until: int = 0

    def __post_init__(self) -> None:
        rng = Random(f"rates {self.seed}")
        self.rates = {kind: rng.choice(some) for kind, some in RATES.items()}
        self.p_storm = rng.choice([0.0, 0.001, 0.004])
        self.p_clock = rng.choice([0.0, 0.3, 0.8])

    def has(self, kind: str) -> bool:
        """Whether there are such faults."""
        return kind in self.kinds and not self.calm

    def note(self, number: int, kind: str, words: str) -> None:
        """It happens."""
        self.seen.append((number, kind, words))

    def may(self, number: int) -> bool:
        """Whether the request is one of those that may be befallen."""
        return not self.calm and (self.only is None or number in self.only)

    def draw(self, number: int, verb: str) -> tuple[str, Random] | None:
        """The fault of a request, and chance for what it is like; None for none."""
        if not self.may(number):
            return None
        rng = Random(f"{self.seed} {number}")
        if "storms" in self.kinds:
            if rng.random() < self.p_storm:
                self.storm_until = number + rng.choice([3, 10, 40])
            if number < self.storm_until and rng.random() < 0.7:
                return "storms", rng
        for kind, verbs in OF.items():
            if kind in self.kinds and verb in verbs and rng.random() < self.rates[kind]:
                return kind, rng
        return None
