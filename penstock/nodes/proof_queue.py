"""Choose the suspects to prove next, and remember their proofs. Pure: no store, no clock."""

from collections.abc import Collection, Sequence

from .proof import NodeProof
from .suspects import MINUTE_US, Suspect

PROOFS = 4
"""Most proofs in a review."""
PROVE_AGAIN_US = 10 * MINUTE_US
"""Time until a suspect without a newer sign is proved again."""


class ProofQueue:
    """Suspects and their proofs. Suspects without a proof come first, then the one with the oldest proof."""

    def __init__(self) -> None:
        self.proved: dict[str, tuple[Suspect, NodeProof]] = {}
        """Node -> the suspicion that its last proof confirmed."""
        self._tried: dict[tuple[str, str], tuple[int, int]] = {}  # node, sign -> its time, time of the proof

    def due(self, suspects: Sequence[Suspect], now_us: int, most: int = PROOFS) -> list[Suspect]:
        """Return the suspects to prove now. Proofs of nodes that are no longer suspects are dropped."""
        nodes = {suspect.node for suspect in suspects}
        self.proved = {node: pair for node, pair in self.proved.items() if node in nodes}
        waiting = [suspect for suspect in suspects if now_us >= self._next_us(suspect)]
        return sorted(waiting, key=lambda suspect: self._proved_us(suspect))[:most]

    def add(self, suspect: Suspect, proof: NodeProof, now_us: int) -> None:
        """Note a proof. A later one refutes an earlier one of the same sign."""
        self._tried[suspect.node, suspect.sign] = suspect.at_us, now_us
        if proof.is_bad:
            self.proved[suspect.node] = suspect, proof
        elif suspect.node in self.proved and self.proved[suspect.node][0].sign == suspect.sign:
            del self.proved[suspect.node]

    def unrefuted(self, suspects: Collection[Suspect]) -> set[str]:
        """Return the suspects that are proved, or that no proof has met yet: many of them have a common cause."""
        untried = {one.node for one in suspects if (one.node, one.sign) not in self._tried}
        return untried | self.proved.keys()

    def _proved_us(self, suspect: Suspect) -> int:
        return self._tried.get((suspect.node, suspect.sign), (0, 0))[1]

    def _next_us(self, suspect: Suspect) -> int:
        at_us, tried_us = self._tried.get((suspect.node, suspect.sign), (0, -PROVE_AGAIN_US))
        is_new = suspect.at_us > at_us and suspect.node not in self.proved
        return 0 if is_new else tried_us + PROVE_AGAIN_US
