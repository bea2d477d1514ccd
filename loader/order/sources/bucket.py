"""Buckets as a caller requests them: the expression that assigns samples, and the batch size of each bucket."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from ...errors import InvalidPlan
from ..random.plan_hash import MAX_GLOBAL_BATCH, int_in_range
from ..weights import GlobalBatch, in_force, steps_of

_SHAPE = re.compile(r"w([0-9]+)h([0-9]+)(?:f([0-9]+))?")  # width, height in px, frames
_SHOWN_NAMES = 8  # most names in an error

Number: TypeAlias = int | float | str | Fraction | Decimal


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
            f"bucket({by!r}): an SQL expression on the samples table is needed, such as 'bucket'",
            what="by",
            where="bucket",
            given=by,
        )
    needs_budget = cost is not None or multiple != 1
    _check_budget(budget is not None, batch is not None, needs_budget)
    batch_of_label = _by_label("batch", batch)
    cost_of_label = _by_label("cost", cost)

    edge_texts = None
    if edges is not None:
        edge_texts = _edges(edges)
    batch_steps = {}
    for label, sizes in batch_of_label.items():
        subject = f"batch of bucket {label!r}"
        batch_steps[label] = steps_of(subject, sizes, _batch_size)
    budget_steps = None
    if budget is not None:
        budget_steps = steps_of("budget", budget, _positive)
    return BucketBy(
        by=by,
        edges=edge_texts,
        batch=batch_steps,
        budget=budget_steps,
        cost=cost_of_label,
        multiple=int_in_range("multiple", multiple, 1, MAX_GLOBAL_BATCH),
    )


def size_ramp(
    bucket_by: BucketBy,
    labels: Collection[str],
    global_batch: Sequence[tuple[int, int]],
) -> list[tuple[int, dict[str, int]]]:
    """Return (start step, `batch_sizes`) wherever a size changes. global_batch: (start step, slots) pairs."""
    ramps: list[Iterable[tuple[int, object]]] = [
        global_batch,
        bucket_by.budget or (),
        *bucket_by.batch.values(),
    ]
    starts: set[int] = set()
    for ramp in ramps:
        for start, _ in ramp:
            starts.add(start)

    out: list[tuple[int, dict[str, int]]] = []
    former = None
    for step in sorted(starts):
        slots = in_force(global_batch, step)
        sizes = batch_sizes(bucket_by, labels, slots, step)
        if sizes != former:
            out.append((step, sizes))
        former = sizes
    return out


def batch_sizes(
    bucket_by: BucketBy,
    labels: Iterable[str],
    global_batch: int,
    step: int = 0,
) -> dict[str, int]:
    """Return label -> slots per batch at a step, labels ascending.

    Raises: InvalidPlan for unknown labels or costs.
    """
    labels = sorted(labels)
    _check_labels(bucket_by, "batch", bucket_by.batch, labels)
    _check_labels(bucket_by, "cost", bucket_by.cost, labels)

    sizes = {}
    if bucket_by.budget is None:
        for label in labels:
            ramp = bucket_by.batch.get(label, [(0, global_batch)])
            sizes[label] = in_force(ramp, step)
        return sizes

    multiple = bucket_by.multiple
    if multiple > global_batch:
        raise InvalidPlan(
            f"multiple = {multiple} is more than global_batch = {global_batch}, the largest batch of any bucket",
            what="multiple",
            given=multiple,
            accepted=f"at most {global_batch}",
        )
    budget = in_force(bucket_by.budget, step)
    for label in labels:
        cost = sample_cost(bucket_by, label)
        affordable = int(budget // cost)
        at_least_one = max(1, affordable)
        size = min(global_batch, at_least_one)
        n_multiples = max(1, size // multiple)  # rounded down, but not to 0
        sizes[label] = n_multiples * multiple
    return sizes


def sample_cost(bucket_by: BucketBy, label: str) -> Fraction:
    """Return the cost of one sample in a bucket, in the budget's unit."""
    if label in bucket_by.cost:
        return _positive(f"cost of bucket {label!r}", bucket_by.cost[label])

    if bucket_by.edges is not None:
        _, _, upper = label.partition("..")
        if upper != "inf":
            return _positive(f"upper edge of bucket {label!r}", upper)
    elif shape := _SHAPE.fullmatch(label):
        numbers = shape.groups(default="1")  # an image has one frame
        pixels = prod(map(int, numbers))
        return _positive(f"pixels of bucket {label!r}", pixels)
    raise InvalidPlan(
        f"bucket {label!r}: its name does not say what a sample costs (w896h1152 and w640h384f32 do, and upper edges); "
        "pass cost={label: number, ...}",
        what="cost",
        where=f"bucket {label!r}",
    )


def edge_ranges(edges: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return label -> (lower edge, upper edge) of each bucket."""
    ranges = {}
    for low, high in pairwise(edges):
        ranges[f"{low}..{high}"] = (low, high)
    return ranges


def first_few(names: Sequence[str]) -> str:
    """Return the first names as text, and how many more there are."""
    first = [repr(name) for name in names[:_SHOWN_NAMES]]
    text = ", ".join(first)
    n_more = len(names) - _SHOWN_NAMES
    if n_more > 0:
        text += f" and {n_more} more"
    return text


def _check_budget(has_budget: bool, has_batch: bool, needs_budget: bool) -> None:
    if has_budget and has_batch:
        raise InvalidPlan(
            "bucket(batch=, budget=): give the batch sizes, or a budget that they follow from, not both",
            what="batch",
            where="bucket",
        )
    if needs_budget and not has_budget:
        raise InvalidPlan(
            "bucket(cost=, multiple=) say how batches follow from a budget: give budget= too",
            what="budget",
            where="bucket",
        )


def _by_label(name: str, option: object) -> dict[str, Any]:
    """Return a mapping from text labels. Raises InvalidPlan if the option of `bucket` is not a mapping."""
    if option is None:
        return {}
    if not isinstance(option, Mapping):
        raise InvalidPlan(
            f"bucket({name}={option!r}): a mapping of a bucket's label to its number is needed",
            what=name,
            where="bucket",
            given=option,
            accepted="a mapping of a bucket's label to its number",
        )
    by_label = {}
    for label, value in option.items():
        by_label[str(label)] = value
    return by_label


def _check_labels(
    bucket_by: BucketBy,
    name: str,
    option: Mapping[str, object],
    labels: Sequence[str],
) -> None:
    """Raise InvalidPlan if an option of `bucket` names a label that no bucket has."""
    unknown = sorted(set(option) - set(labels))
    if unknown:
        first_unknown = unknown[:_SHOWN_NAMES]
        buckets = first_few(labels)
        raise InvalidPlan(
            f"bucket({name}=) names {first_unknown}; the buckets of {bucket_by.by!r} are {buckets}",
            what=name,
            where="bucket",
            given=first_unknown,
            accepted=buckets,
        )


def _edges(edges: Sequence[Number]) -> tuple[str, ...]:
    """Return edges as text without an exponent, checked: two or more that ascend, finite up to the last one."""
    numbers: list[Decimal] = []
    try:
        for edge in edges:
            if not isinstance(edge, bool):
                text = str(edge)  # 0.1 means 1/10, not the double next to it
                numbers.append(Decimal(text))
        inner_edges = numbers[:-1]
        is_complete = len(numbers) == len(edges) >= 2  # no truth value among them
        is_ascending = all(low < high for low, high in pairwise(numbers))
        is_finite = all(number.is_finite() for number in inner_edges)
        is_valid = is_complete and is_ascending and is_finite
    except (InvalidOperation, TypeError):  # no number, or NaN in a comparison
        is_valid = False
    if not is_valid:
        raise InvalidPlan(
            f"bucket(edges={edges!r}): two or more ascending numbers are needed; the last may be float('inf')",
            what="edges",
            where="bucket",
            given=edges,
            accepted="two or more ascending numbers",
        )

    texts = []
    for number in numbers:
        if number.is_infinite():
            texts.append("inf")
        else:
            plain = number.normalize() + 0  # -0 becomes 0
            texts.append(format(plain, "f"))
    return tuple(texts)


def _positive(name: str, value: Number) -> Fraction:
    """Return value exactly. Raises InvalidPlan unless it is a number above 0."""
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if isinstance(value, bool) or exact <= 0:
        raise InvalidPlan(
            f"{name} = {value!r}: a number above 0 is needed",
            what=name,
            given=value,
            accepted="a number above 0",
        )
    return exact


def _batch_size(name: str, value: object) -> int:
    return int_in_range(name, value, 1, MAX_GLOBAL_BATCH)
