"""Draw samples by score: cut a view into bands of scores, each a source with its own weight.

    share of band b = n_b * w_b / sum over bands of n_b * w_b

A sample in a band of weight 2 is drawn twice as often as one of weight 1.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

from ..errors import InvalidPlan
from .content import MixtureSource, split_view
from .sources.bucket import Number, bucket, edge_ranges, first_few
from .sources.views import OrderView
from .weights import Weight

RESOLUTION = 4096
"""Largest sum of a view's integer shares; leaves room for other sources."""


def by_score(
    name: str,
    view: OrderView,
    by: str,
    weights: Mapping[str, Weight] | Sequence[Weight],
    *,
    edges: Sequence[Number] | None = None,
    share: Weight = 1,
) -> dict[str, MixtureSource]:
    """Return sources `name:band` for `loader.plan`, with weights so that each sample's score decides its frequency.

    by: SQL expression on the samples table. With edges it is a number, and there is one weight per range [edges[0],
    edges[1]), [edges[1], edges[2]), ...; the last edge may be float("inf"). Without edges its values (strings, whole
    numbers or booleans) are the bands, and weights maps each band, as text, to its weight. A weight of 0 leaves its
    band out.
    share: share of all bands together, relative to the plan's other sources.

    Shares are exact if their reduced numbers sum to at most RESOLUTION, else rounded to 1 part in RESOLUTION. Costs one
    scan of the columns that `by` names.

    Raises: InvalidPlan if a sample has no band, if weights do not match the bands, or if no band is left;
    FieldNotFound.
    """
    asked = bucket(by, edges=edges)
    bands = split_view(name, view, asked.by, asked.edges)
    weight_of = _weights(by, weights, asked.edges, bands)
    drawn = {label: _number(by, label, weight_of[label]) * len(band) for label, band in bands.items()}
    shares = _whole({label: value for label, value in drawn.items() if value})
    if not shares:
        raise InvalidPlan(
            f"by_score({by!r}): no band with samples has a weight above 0; bands are {first_few(list(bands))}"
        )
    total = sum(shares.values())
    return {
        f"{name}:{label}": MixtureSource(bands[label], _number(by, "share", share) * Fraction(n, total))
        for label, n in shares.items()
    }


def _weights(
    by: str,
    weights: Mapping[str, Weight] | Sequence[Weight],
    edges: Sequence[str] | None,
    bands: Mapping[str, OrderView],
) -> Mapping[str, Weight]:
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
            f"by_score({by!r}): weights are for {first_few(sorted(weight_of))}, the values are "
            f"{first_few(sorted(bands))}; give each a weight, 0 to leave it out"
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
    scale = lcm(*(share.denominator for share in shares.values()))
    exact = {label: int(share * scale) for label, share in shares.items()}
    divisor = gcd(*exact.values())
    exact = {label: n // max(1, divisor) for label, n in exact.items()}
    total = sum(exact.values())
    if total <= RESOLUTION:
        return exact
    return {label: max(1, round(Fraction(n * RESOLUTION, total))) for label, n in exact.items()}
