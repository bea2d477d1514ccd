"""Draw samples by score: cut a view into bands of scores, each a source with its own weight.

    share of band b = n_b * w_b / sum over bands of n_b * w_b

A sample in a band of weight 2 is drawn twice as often as one of weight 1.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..errors import InvalidPlan
from .bucket_sources import split_view
from .planned_source import MixtureSource
from .sources.bucket import Number, bucket, edge_ranges, first_few
from .sources.views import OrderView
from .weights import Weight, exact_fraction, smallest_integers

RESOLUTION = 4096
"""Largest sum of a view's integer shares; leaves room for other sources."""

BandWeights = Mapping[str, Weight] | Sequence[Weight]
"""Band -> weight, or a weight per range of the edges."""


def by_score(
    name: str,
    view: OrderView,
    by: str,
    weights: BandWeights,
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
    bucket_by = bucket(by, edges=edges)
    edge_texts = bucket_by.edges
    bands = split_view(name, view, bucket_by.by, edge_texts)
    band_weights = _band_weights(by, weights, edge_texts, bands)

    draws: dict[str, Fraction] = {}  # band -> samples times weight, zeros left out
    for label, band in bands.items():
        weight = _exact_weight(by, label, band_weights[label])
        n_draws = weight * len(band)
        if n_draws:
            draws[label] = n_draws
    if not draws:
        labels = first_few(list(bands))
        raise InvalidPlan(
            f"by_score({by!r}): no band with samples has a weight above 0; bands are {labels}",
            what="weights",
            where=f"by_score({by!r})",
            given=[str(band_weights[label]) for label in bands],
            accepted="a weight above 0 for a band with samples",
        )

    shares = coarse_integers(draws)
    total = sum(shares.values())
    exact_share = _exact_weight(by, "share", share)
    sources = {}
    for label, band_share in shares.items():
        weight = exact_share * Fraction(band_share, total)
        sources[f"{name}:{label}"] = MixtureSource(bands[label], weight)
    return sources


def _band_weights(
    by: str,
    weights: BandWeights,
    edges: Sequence[str] | None,
    bands: Mapping[str, OrderView],
) -> Mapping[str, Weight]:
    """Return band -> weight. Raises InvalidPlan unless each band has one."""
    if edges is not None:
        labels = list(edge_ranges(edges))
        is_list = not isinstance(weights, Mapping | str)
        n_labels = len(labels)
        if not is_list or len(weights) != n_labels:
            raise InvalidPlan(
                f"by_score({by!r}, weights={weights!r}): "
                f"with {len(edges)} edges a list of {n_labels} weights is needed",
                what="weights",
                where=f"by_score({by!r})",
                given=weights,
                accepted=f"a list of {n_labels} weights",
            )
        return dict(zip(labels, weights, strict=True))

    if not isinstance(weights, Mapping):
        raise InvalidPlan(
            f"by_score({by!r}, weights={weights!r}): a mapping of each value to its weight is needed, or edges=",
            what="weights",
            where=f"by_score({by!r})",
            given=weights,
            accepted="a mapping of each value to its weight",
        )
    band_weights = {}
    for value, weight in weights.items():
        band_weights[str(value)] = weight
    if band_weights.keys() != bands.keys():
        weight_labels = first_few(sorted(band_weights))
        values = first_few(sorted(bands))
        raise InvalidPlan(
            f"by_score({by!r}): weights are for {weight_labels}, the values are {values}; "
            "give each a weight, 0 to leave it out",
            what="weights",
            where=f"by_score({by!r})",
            given=sorted(band_weights),
            accepted=sorted(bands),
        )
    return band_weights


def _exact_weight(
    by: str,
    label: str,
    weight: Weight,
) -> Fraction:
    try:
        exact: Fraction | None = exact_fraction(weight)
    except (TypeError, ValueError, ZeroDivisionError):
        exact = None
    if exact is None or exact < 0:
        raise InvalidPlan(
            f"by_score({by!r}): the weight of {label!r} is {weight!r}; a finite number is needed, 0 or above",
            what=f"weight of {label!r}",
            where=f"by_score({by!r})",
            given=weight,
            accepted="a finite number, 0 or above",
        )
    return exact


def coarse_integers(draws: Mapping[str, Fraction]) -> dict[str, int]:
    """Return integers in the ratio of these numbers, rounded if their sum exceeds RESOLUTION."""
    exact = smallest_integers(draws)
    total = sum(exact.values())
    if total <= RESOLUTION:
        return exact
    coarse = {}
    for label, share in exact.items():
        scaled = Fraction(share * RESOLUTION, total)
        nearest = round(scaled)
        coarse[label] = max(1, nearest)  # no band with a weight is left out
    return coarse
