"""How much a batch may differ from the baseline before it is stopped: one value per dataset, in its spec."""

import math
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a difference has to exceed to matter; docs/gates.md says why each default is what it is.

    Shares are of raw objects or samples, 0 to 1, and differences of them. alpha: chance that an honest batch is
    stopped by chance, over all of its comparisons together. min_batches: published batches, below which nobody knows
    what is usual: findings that compare distributions are then warnings. share: of a category; missing: of nulls and
    NaNs in a column; zeros: of exact zeros; level, ks, psi: of a column's distribution: of its mean in standard
    deviations, its Kolmogorov-Smirnov distance, its population stability index; units_ratio: samples per used
    object, as a ratio; rejected, unused: shares of the landed objects; batch_ratio: samples of a batch against the
    median batch, for feeds whose deliveries are of one size, None for others; caption: drop of the share of captions
    that fit their object, or of the correlation of their lengths; near_bits: distance of perceptual hashes within which
    a picture is that of a protected version; ignore: columns that are not compared; within: columns by which
    distributions are compared apart from each other, beside all samples of a kind.

    Raises: ValueError for what cannot be meant.
    """

    alpha: float = 1e-3
    min_batches: int = 3
    share: float = 0.1
    missing: float = 0.005
    zeros: float = 0.005
    level: float = 0.2
    ks: float = 0.1
    psi: float = 0.2
    units_ratio: float = 0.95
    rejected: float = 0.02
    unused: float = 0.05
    batch_ratio: float | None = None
    caption: float = 0.1
    near_bits: int = 8
    ignore: frozenset[str] = frozenset()
    within: tuple[str, ...] = ("source",)

    def __post_init__(self) -> None:
        for name in (
            "alpha",
            "share",
            "missing",
            "zeros",
            "level",
            "ks",
            "psi",
            "rejected",
            "unused",
            "caption",
        ):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}; accepted: above 0, at most 1")
        for name in ("units_ratio", "batch_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name}={value}; accepted: between 0 and 1, e.g. 0.95")
        if not 1 <= self.min_batches < math.inf or not 0 <= self.near_bits <= 16:
            raise ValueError(
                f"min_batches={self.min_batches}, near_bits={self.near_bits}; accepted: 1 or more, and 0 to 16"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON without floats: what a fingerprint is made of."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in plain.items()}
