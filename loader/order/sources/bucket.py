"""Buckets as a caller requests them: the expression that assigns samples, and the batch size of each bucket."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import pairwise

from ...errors import InvalidPlan
from ..random.plan_hash import MAX_GLOBAL_BATCH, whole
from ..weights import GlobalBatch, in_force, steps_of

_SHAPE = re.compile(r"w([0-9]+)h([0-9]+)(?:f([0-9]+))?")  # width, height in px, frames

Number = int | float | str | Fraction | Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketBy:
    by: str
    """SQL expression on the samples table."""
    edges: tuple[str, ...] | None
    """Ascending edges as text, such as "0", "12.5", "inf"; None if values are labels."""
    batch: Mapping[str, Sequence[tuple[int, int]]]
    """Label -> (start step, samples per global batch) pairs."""
    budget: Sequence[tuple[int, Fraction]] | None
    """(start step, cost of a global batch) pairs, or None."""
    cost: Mapping[str, Number]
    """Label -> cost of one sample, in the budget's unit."""
    multiple: int
    """Batches are rounded down to a multiple of this number."""


def bucket(
    by: str,
    *,
    edges: Sequence[Number] | None = None,
    batch: Mapping[str, GlobalBatch] | None = None,
    budget: Number | Sequence[tuple[int, Number]] | None = None,
    cost: Mapping[str, Number] | None = None,
    multiple: int = 1,
) -> BucketBy:
    """Return buckets for a plan's samples: every batch comes from one bucket.

    by: an SQL expression on the samples table. Without edges its values (strings, whole numbers or booleans) are the
    buckets' labels, such as `w896h1152` in the column `bucket`. With edges, ascending numbers, the expression is a
    number, and the buckets are [edges[0], edges[1]), [edges[1], edges[2]), ..., labelled `0..12.5`; the last edge may
    be float("inf").
    batch: label -> samples per global batch of that bucket; other buckets have the plan's global_batch.
    budget: pixels, tokens or seconds per global batch, instead of `batch`. A bucket's batch is then `max(1, budget //
    cost of one sample)`, at most the plan's global_batch.
    multiple: a budget's batches are rounded down to a multiple of this number (such as the world size), but not below
    it.
    cost: label -> cost of one sample, in the budget's unit. The default is the upper edge, or for a label such as
    `w640h384f32` width x height x frames in pixels.

    A batch, or the budget, may change at a step, like the plan's global_batch: [(0, 64), (1000, 128), ...].

    Raises: InvalidPlan for arguments that do not go together.
    """
    if not isinstance(by, str) or not by.strip():
        raise InvalidPlan(
            f"bucket({by!r}): an SQL expression on the samples table is needed, such as 'bucket'"
        )
    if budget is not None and batch is not None:
        raise InvalidPlan(
            "bucket(batch=, budget=): give the batch sizes, or a budget that they follow from, not both"
        )
    if budget is None and (cost is not None or multiple != 1):
        raise InvalidPlan("bucket(cost=, multiple=) say how batches follow from a budget: give budget= too")
    for name, option in (("batch", batch), ("cost", cost)):
        if option is not None and not isinstance(option, Mapping):
            raise InvalidPlan(
                f"bucket({name}={option!r}): a mapping of a bucket's label to its number is needed"
            )
    return BucketBy(
        by=by,
        edges=None if edges is None else _edges(edges),
        batch={
            str(label): steps_of(
                f"batch of bucket {label!r}", option, lambda name, n: whole(name, n, 1, MAX_GLOBAL_BATCH)
            )
            for label, option in (batch or {}).items()
        },
        budget=None if budget is None else steps_of("budget", budget, _positive),
        cost={str(label): value for label, value in (cost or {}).items()},
        multiple=whole("multiple", multiple, 1, MAX_GLOBAL_BATCH),
    )


def size_ramp(
    bucket_by: BucketBy, labels: Collection[str], global_batch: Sequence[tuple[int, int]]
) -> list[tuple[int, dict[str, int]]]:
    """Return (start step, `batch_sizes`) wherever a size changes. global_batch: (start step, slots) pairs."""
    ramps: list[Iterable[tuple[int, object]]] = [
        global_batch,
        bucket_by.budget or (),
        *bucket_by.batch.values(),
    ]
    out: list[tuple[int, dict[str, int]]] = []
    for step in sorted({start for ramp in ramps for start, _ in ramp}):
        sizes = batch_sizes(bucket_by, labels, in_force(global_batch, step), step)
        if not out or out[-1][1] != sizes:
            out.append((step, sizes))
    return out


def batch_sizes(
    bucket_by: BucketBy, labels: Iterable[str], global_batch: int, step: int = 0
) -> dict[str, int]:
    """Return label -> slots per batch at a step, labels ascending.

    Raises: InvalidPlan for unknown labels or costs.
    """
    labels = sorted(labels)
    for name, value in (("batch", bucket_by.batch), ("cost", bucket_by.cost)):
        if unknown := sorted(set(value) - set(labels)):
            raise InvalidPlan(
                f"bucket({name}=) names {unknown[:8]}; the buckets of {bucket_by.by!r} are {first_few(labels)}"
            )
    if bucket_by.budget is None:
        return {label: in_force(bucket_by.batch.get(label, [(0, global_batch)]), step) for label in labels}
    if bucket_by.multiple > global_batch:
        raise InvalidPlan(
            f"multiple = {bucket_by.multiple} is more than global_batch = {global_batch}, the largest batch "
            "of any bucket"
        )
    out = {}
    for label in labels:
        fits = min(
            global_batch, max(1, int(in_force(bucket_by.budget, step) // sample_cost(bucket_by, label)))
        )
        out[label] = max(1, fits // bucket_by.multiple) * bucket_by.multiple
    return out


def sample_cost(bucket_by: BucketBy, label: str) -> Fraction:
    """Return the cost of one sample in a bucket, in the budget's unit."""
    if label in bucket_by.cost:
        return _positive(f"cost of bucket {label!r}", bucket_by.cost[label])
    if bucket_by.edges is not None:
        upper = label.partition("..")[2]
        if upper != "inf":
            return _positive(f"upper edge of bucket {label!r}", upper)
    elif shape := _SHAPE.fullmatch(label):
        return _positive(f"pixels of bucket {label!r}", int(shape[1]) * int(shape[2]) * int(shape[3] or 1))
    raise InvalidPlan(
        f"bucket {label!r}: its name does not say what a sample costs (w896h1152 and w640h384f32 do, and upper edges); "
        "pass cost={label: number, ...}"
    )


def edge_ranges(edges: Sequence[str]) -> dict[str, tuple[str, str]]:
    return {f"{low}..{high}": (low, high) for low, high in pairwise(edges)}


def first_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(repr, names[:8])) + more


def _edges(edges: Sequence[Number]) -> tuple[str, ...]:
    try:
        numbers = [Decimal(str(edge)) for edge in edges if not isinstance(edge, bool)]
        ascending = all(low < high for low, high in pairwise(numbers))
    except (InvalidOperation, TypeError):
        numbers, ascending = [], False
    if (
        len(numbers) < 2
        or len(numbers) != len(edges)
        or not ascending
        or not all(n.is_finite() for n in numbers[:-1])
    ):
        raise InvalidPlan(
            f"bucket(edges={edges!r}): two or more ascending numbers are needed; the last may be float('inf')"
        )
    return tuple("inf" if n.is_infinite() else format(n.normalize() + 0, "f") for n in numbers)


def _positive(name: str, value: Number) -> Fraction:
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if isinstance(value, bool) or exact <= 0:
        raise InvalidPlan(f"{name} = {value!r}: a number above 0 is needed")
    return exact
