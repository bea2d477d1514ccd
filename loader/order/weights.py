"""Read a mixture as the user writes it: weights as exact integers, and schedules of values by step (ramps)."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any, TypeVar

from ..errors import InvalidPlan
from .random.plan_hash import MAX_GLOBAL_BATCH, int_in_range

MAX_TOTAL_WEIGHT = 2**16

Weight = int | float | str | Fraction

GlobalBatch = int | Sequence[tuple[int, int]]
"""Slots per optimizer step over all ranks: a number, or [(first step, number), ...]."""

_SHOWN_WEIGHTS = 8  # most weights in an error
T = TypeVar("T")

Schedule = Sequence[tuple[int, Mapping[str, Weight]]]


def integer_weights(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Return the weights as the order uses them: integers, reduced by their gcd, zeros left out, sorted by name.

    A float, a Fraction or a decimal string ("0.7", "1/3") is read as its printed decimal, and rounded to the nearest
    fraction with a denominator of at most 2^16.

    Raises InvalidPlan if a weight is not a number, is negative, or rounds to 0; if all are zero; if the sum exceeds
    2^16.
    """
    fractions: dict[str, Fraction] = {}
    for name in sorted(weights):
        fraction = _fraction(name, weights[name])
        if fraction:
            fractions[name] = fraction
    if not fractions:
        raise InvalidPlan(
            f"weights {dict(weights)!r}: at least one source needs a weight above 0",
            what="weights",
            given=dict(weights),
            accepted="a weight above 0",
        )

    integers = smallest_integers(fractions)
    total = sum(integers.values())
    if total <= MAX_TOTAL_WEIGHT:
        return integers

    near = {}
    for name, value in integers.items():
        scaled = value * MAX_TOTAL_WEIGHT
        near[name] = scaled // total
    hint = ""
    is_short = len(near) <= _SHOWN_WEIGHTS
    if is_short and all(near.values()):  # a weight of 0 would leave its source out
        hint = f"; close to yours: {near}"
    brief = _first_weights(integers)
    raise InvalidPlan(
        f"weights {brief} sum to {total} after division by their gcd: at most "
        f"{MAX_TOTAL_WEIGHT} is accepted; round them to coarser numbers{hint}",
        what="weights",
        given=total,
        accepted=f"at most {MAX_TOTAL_WEIGHT}",
    )


def smallest_integers(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Return the smallest positive integers in the ratio of these positive shares."""
    denominators = [share.denominator for share in shares.values()]
    scale = lcm(*denominators)
    integers = {}
    for name, share in shares.items():
        scaled = share * scale  # a whole number
        integers[name] = int(scaled)
    divisor = gcd(*integers.values())
    for name in integers:
        integers[name] //= divisor
    return integers


def _fraction(name: str, weight: Weight) -> Fraction:
    try:
        exact = exact_fraction(weight)
    except (TypeError, ValueError, ZeroDivisionError):
        raise InvalidPlan(
            f"source {name!r}: weight {weight!r} is not a finite number; "
            "an int, a Fraction, a float or a decimal string is accepted",
            what="weight",
            where=f"source {name!r}",
            given=weight,
            accepted="an int, a Fraction, a float or a decimal string",
        ) from None
    if exact < 0:
        raise InvalidPlan(
            f"source {name!r}: weight {weight!r} is negative; 0 leaves the source out",
            what="weight",
            where=f"source {name!r}",
            given=weight,
            accepted="0 or more",
        )
    near = exact.limit_denominator(MAX_TOTAL_WEIGHT)
    if exact and not near:
        raise InvalidPlan(
            f"source {name!r}: weight {weight!r} rounds to 0 at a resolution of 1/{MAX_TOTAL_WEIGHT}; "
            "give whole-number weights, or 0 to leave the source out",
            what="weight",
            where=f"source {name!r}",
            given=weight,
            accepted=f"1/{MAX_TOTAL_WEIGHT} or more",
        )
    return near


def exact_fraction(weight: Weight) -> Fraction:
    """Return a weight as its printed decimal. Raises: TypeError, ValueError, ZeroDivisionError if it is no number."""
    if isinstance(weight, bool):
        raise TypeError("a truth value is not a weight")
    if isinstance(weight, int | Fraction):
        return Fraction(weight)
    text = str(weight)  # 0.1 means 1/10, not the double next to it
    return Fraction(text)


def _first_weights(weights: Mapping[str, int]) -> str:
    """Return the weights as text, the first few of them."""
    texts: list[str] = []
    for name, value in weights.items():
        if len(texts) == _SHOWN_WEIGHTS:
            texts.append("...")
            break
        texts.append(f"{name}: {value}")
    text = ", ".join(texts)
    return "{" + text + "}"


def parse_ramp(value: object) -> list[tuple[int, int]]:
    """Return (start step, slots) pairs of a global batch, from step 0 on."""

    def check_batch(name: str, slots: Any) -> int:
        return int_in_range(name, slots, 1, MAX_GLOBAL_BATCH)

    return steps_of("global_batch", value, check_batch)


def steps_of(
    name: str,
    changes: object,
    checked: Callable[[str, Any], T],
) -> list[tuple[int, T]]:
    """Return (start step, value) pairs from step 0 on, without entries that change nothing.

    changes: one value, or [(step, value), ...]. checked: (name for messages, value) -> the validated value.
    """
    is_text = isinstance(changes, str)  # a str is a Sequence
    if is_text or not isinstance(changes, Sequence):
        value = checked(name, changes)
        return [(0, value)]

    schedule: list[tuple[int, T]] = []
    low = 0
    high = 0  # the first entry is at step 0
    for number, entry in enumerate(changes):
        try:
            start, value = entry
        except (TypeError, ValueError):
            raise InvalidPlan(
                f"{name} entry {entry!r}: (step, number) is needed",
                what=name,
                given=entry,
                accepted="(step, number)",
            ) from None
        start_name = f"{name} entry {number}: step"
        start = int_in_range(start_name, start, low, high)
        value_name = f"{name} from step {start}"
        value = checked(value_name, value)
        low = start + 1
        high = 2**53
        if schedule:
            _, former_value = schedule[-1]
            if value == former_value:
                continue
        schedule.append((start, value))
    if not schedule:
        raise InvalidPlan(
            f"{name} = {changes!r}: a number, or [(0, number), (step, number), ...], is needed",
            what=name,
            given=changes,
            accepted="a number, or [(0, number), (step, number), ...]",
        )
    return schedule


def in_force(
    schedule: Sequence[tuple[int, T]],
    step: int,
) -> T:
    """Return the value at a step, from an ascending schedule that starts at step 0."""
    begun = bisect_right(
        schedule,
        step,
        key=lambda entry: entry[0],
    )
    _, value = schedule[begun - 1]
    return value


def split_schedule(
    schedule: Sequence[tuple[int, T]],
    starts: Iterable[int],
) -> list[tuple[int, T]]:
    """Return the schedule with an entry at each of its own starts and at `starts`, in order."""
    all_starts = set(starts)
    for start, _ in schedule:
        all_starts.add(start)
    out = []
    for start in sorted(all_starts):
        value = in_force(schedule, start)
        out.append((start, value))
    return out


def integer_schedule(
    weights: Mapping[str, Weight],
    schedule: Schedule,
) -> list[tuple[int, dict[str, int]]]:
    """Return a schedule with integer weights, as (start step, weights) pairs from step 0 on. Raises: InvalidPlan.

    weights: all sources' weights, in force from step 0 unless the schedule has an entry there.
    """
    weight_schedule: list[tuple[int, dict[str, int]]] = []
    for entry in schedule:
        try:
            start, mixture = entry
            unknown = sorted(set(mixture) - set(weights))
        except (TypeError, ValueError):
            raise InvalidPlan(
                f"schedule entry {entry!r}: (step, {{source name: weight}}) is needed",
                what="schedule",
                given=entry,
                accepted="(step, {source name: weight})",
            ) from None
        first_allowed = 0
        if weight_schedule:
            first_allowed = weight_schedule[-1][0] + 1
        start = int_in_range(f"schedule entry {len(weight_schedule)}: step", start, first_allowed, 2**53)
        if unknown:
            raise InvalidPlan(
                f"schedule at step {start} names {unknown}; the sources are {sorted(weights)}",
                what="schedule",
                where=f"step {start}",
                given=unknown,
                accepted=sorted(weights),
            )
        weight_schedule.append((start, integer_weights(mixture)))
    if not weight_schedule or weight_schedule[0][0] > 0:
        weight_schedule.insert(0, (0, integer_weights(weights)))
    return weight_schedule
