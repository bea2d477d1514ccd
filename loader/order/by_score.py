"""Samples drawn by score: a view cut into bands of a number, each a source of a mixture with its samples' weight.

    share of band b = n_b * w_b / sum over bands of n_b * w_b

so that a sample of a band with weight 2 comes twice as often as one of a band with weight 1. Inside a band the order is
that of any source: every sample once in each of the band's epochs.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

from ..errors import InvalidPlan
from .bucketed import split_view
from .content import Source
from .mixture import Weight
from .sources.bucket import Number, bucket, edge_ranges, some
from .sources.views import OrderView

RESOLUTION = 4096
"""The shares of one view's bands are whole numbers of at most this sum, so that other sources still fit beside them."""


def by_score(
    name: str,
    view: OrderView,
    by: str,
    weights: Mapping[str, Weight] | Sequence[Weight],
    *,
    edges: Sequence[Number] | None = None,
    share: Weight = 1,
) -> dict[str, Source]:
    """Return sources `name:band` for `loader.plan`, whose weights make every sample come as often as its score says.

    by: an SQL expression on the samples table. With edges it is a number; weights are then one per range [edges[0],
    edges[1]), [edges[1], edges[2]), ...; the last edge may be float("inf"). Without edges its values (strings, whole
    numbers or booleans) are the bands, and weights maps each of them, as text, to its weight. A weight of 0 leaves its
    band out.
    share: of all bands together, beside the plan's other sources.

    Shares are exact where their reduced numbers sum to RESOLUTION at most, else rounded to 1 part in RESOLUTION, and no
    band that has a weight is rounded to none. Costs one scan of the columns that `by` names.

    Raises: InvalidPlan for samples without a band, which it names, for weights that do not go with the bands, and when
    nothing is left; FieldNotFound.
    """
    asked = bucket(by, edges=edges)
    bands = split_view(name, view, asked.by, asked.edges)
    weight_of = _weights(by, weights, asked.edges, bands)
    drawn = {label: _number(by, label, weight_of[label]) * len(band) for label, band in bands.items()}
    shares = _whole({label: value for label, value in drawn.items() if value})
    if not shares:
        raise InvalidPlan(
            f"by_score({by!r}): no band with samples has a weight above 0; bands are {some(list(bands))}"
        )
    total = sum(shares.values())
    return {
        f"{name}:{label}": Source(bands[label], _number(by, "share", share) * Fraction(n, total))
        for label, n in shares.items()
    }


def _weights(
    by: str,
    weights: Mapping[str, Weight] | Sequence[Weight],
    edges: Sequence[str] | None,
    bands: Mapping[str, OrderView],
) -> Mapping[str, Weight]:
    """Return label -> weight, of every band that has samples."""
    if edges is not None:
        labels = list(edge_ranges(edges))
        if isinstance(weights, Mapping | str) or len(weights) != len(labels):
            raise InvalidPlan(
                f"by_score({by!r}, weights={weights!r}): with {len(edges)} edges a list of {len(labels)} weights "
                "is needed"
            )
        return dict(zip(labels, weights, strict=True))
    if not isinstance(weights, Mapping):
        raise InvalidPlan(
            f"by_score({by!r}, weights={weights!r}): a mapping of each value to its weight is needed, or edges="
        )
    weight_of = {str(value): weight for value, weight in weights.items()}
    if weight_of.keys() != bands.keys():
        raise InvalidPlan(
            f"by_score({by!r}): weights are for {some(sorted(weight_of))}, the values are {some(sorted(bands))}; give "
            "each a weight, 0 to leave it out"
        )
    return weight_of


def _number(by: str, label: str, weight: Weight) -> Fraction:
    try:
        if isinstance(weight, bool):
            raise TypeError
        exact = weight if isinstance(weight, Fraction) else Fraction(str(weight))
    except (TypeError, ValueError, ZeroDivisionError):
        exact = Fraction(-1)
    if exact < 0:
        raise InvalidPlan(
            f"by_score({by!r}): the weight of {label!r} is {weight!r}; a finite number is needed, 0 or above"
        )
    return exact


def _whole(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Return whole numbers in these proportions, of sum RESOLUTION or, where exact ones are smaller, less."""
    scale = lcm(*(share.denominator for share in shares.values()))
    exact = {label: int(share * scale) for label, share in shares.items()}
    divisor = gcd(*exact.values())
    exact = {label: n // max(1, divisor) for label, n in exact.items()}
    total = sum(exact.values())
    if total <= RESOLUTION:
        return exact
    return {label: max(1, round(Fraction(n * RESOLUTION, total))) for label, n in exact.items()}
