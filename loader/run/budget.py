"""How many samples of a rank may be substituted before the run stops."""

from collections.abc import Sequence

from ..errors import InvalidRuntime, TooManyCorrupt
from .batch.substitution import Substitution

ALLOWANCE = 8
"""Substituted slots that a budget above 0 always allows, on top of its share: a few hundred samples say nothing about
a share of 1e-4 (docs/order.md)."""


class Budget:
    """Counts what was handed out. Not thread-safe: the caller's thread takes the batches."""

    def __init__(self, share: object) -> None:
        """share: of the samples, 0 to 1. Raises: InvalidRuntime."""
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidRuntime(f"corrupt_budget = {share!r}; a share of the samples from 0 to 1 is needed")
        self.share = float(share)
        self._samples = self._substituted = 0

    def spend(self, samples: int, substitutions: Sequence[Substitution], ledger: str) -> None:
        """Count a batch with so many samples. Raises: TooManyCorrupt when it is beyond the budget; it is not counted
        then, so asking again raises again. ledger: where the substitutions are on record."""
        samples += self._samples
        substituted = self._substituted + len({one.slot for one in substitutions})
        allowed = self.share * samples + (ALLOWANCE if self.share else 0)
        if substitutions and substituted > allowed:
            last = substitutions[-1]
            raise TooManyCorrupt(
                f"step {last.step}: {substituted} of this rank's {samples} samples were corrupt and substituted, "
                f"corrupt_budget = {self.share:g} allows {int(allowed)}. They are listed in {ledger} "
                f"(loader.read_ledger); the last is {last.address.describe()}: {last.error}. Restore the shards from a "
                "mirror, put the samples into the plan's quarantine, or raise corrupt_budget"
            )
        self._samples, self._substituted = samples, substituted
