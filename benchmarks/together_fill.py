"""Measure the share of places that `pack(together=)` fills, against plain packing of the same documents.

Counted on the packing rule, so the figures are the same on every machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loader.order.sources.pack_table import PackTable, pack_documents, pack_groups

N_GROUPS = 20_000
AIM = 0.99
"""Least share of the places that plain packing fills."""
SIGMA = 1.0
"""Standard deviation of the logarithm of a long-tailed length."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Documents in groups. Every group fits into a sequence: longer groups belong to a step, not to a sequence."""

    title: str
    length: int
    """Tokens of a sequence."""
    group_sizes: tuple[int, int]
    """Least and most documents of a group."""
    mean_tokens: int
    """Tokens of a document, about."""
    is_even: bool
    """True: lengths are from half to one and a half of the mean. False: they are long-tailed."""


def _draws() -> Iterator[Draw]:
    for is_even, kind in ((True, "150 to 450 tokens"), (False, "long-tailed")):
        yield Draw(
            title=f"pairs, {kind}, in 4,096",
            length=4_096,
            group_sizes=(2, 2),
            mean_tokens=300,
            is_even=is_even,
        )
    for is_even, kind in ((True, "250 to 750 tokens"), (False, "long-tailed")):
        yield Draw(
            title=f"4 to 8 rollouts, {kind}, in 16,384",
            length=16_384,
            group_sizes=(4, 8),
            mean_tokens=500,
            is_even=is_even,
        )


DRAWS = tuple(_draws())


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Shares of the places that hold a token."""

    together: float
    plain: float

    @property
    def ratio(self) -> float:
        return self.together / self.plain


def fill(draw: Draw, n_groups: int = N_GROUPS) -> Fill:
    """Pack a draw's documents group by group, and one by one."""
    random = np.random.default_rng(1)
    least_size, most_size = draw.group_sizes
    sizes = random.integers(least_size, most_size + 1, n_groups)  # [groups]
    groups = np.repeat(np.arange(1, n_groups + 1), sizes)  # [documents]
    n_documents = len(groups)
    if draw.is_even:
        shortest = draw.mean_tokens // 2
        longest = draw.mean_tokens + shortest
        tokens = random.integers(shortest, longest + 1, n_documents)
    else:
        middle = np.log(draw.mean_tokens) - SIGMA**2 / 2
        tokens = random.lognormal(middle, SIGMA, n_documents).astype(np.int64)
        tokens = tokens.clip(1, draw.length // most_size)
    order = random.permutation(n_documents)  # members of a group lie apart, as in a part
    groups = groups[order]
    ordinals = np.arange(n_documents)
    return Fill(
        together=_share(pack_groups(ordinals, tokens, groups, draw.length), draw.length),
        plain=_share(pack_documents(ordinals, tokens, draw.length), draw.length),
    )


def _share(table: PackTable, length: int) -> float:
    n_places = len(table) * length
    return table.n_tokens / n_places
