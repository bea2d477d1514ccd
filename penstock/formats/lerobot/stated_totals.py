"""Compare the totals of `meta/info.json` with the episodes that `meta/` names."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..reading.stated_counts import MOST_NAMED, StatedCounts


def compare_totals(
    where: str, info: Mapping[str, Any], lengths: Mapping[int, int], n_tasks: int, stated: StatedCounts
) -> None:
    """Record episodes, rows and tasks that the totals state and `meta/` does not name.

    where: location of `info.json`, for messages. lengths: index of each named episode -> its rows.
    """
    n_episodes = _total(info, "total_episodes")
    n_rows = _total(info, "total_frames")
    rows_there = sum(lengths.values())
    rows_missing = n_rows - rows_there
    # `meta/` may name other episodes instead, with higher numbers.
    inside = sorted(number for number in lengths if number < n_episodes)
    if len(inside) < n_episodes:
        gaps = _gaps(inside, n_episodes)
        names = ranges_text(gaps)
        rows = ""
        if rows_missing > 0:
            rows = f" ({rows_missing:,} rows)"
        stated.lacks(
            f"{where} states {n_episodes:,} episodes, and meta/ names {len(lengths):,}: it lacks episodes {names}{rows}"
        )
    elif rows_missing > 0:
        stated.lacks(f"{where} states {n_rows:,} frames, and the episodes of meta/ have {rows_there:,}")
    total_tasks = _total(info, "total_tasks")
    if total_tasks > n_tasks:
        stated.lacks(f"{where} states {total_tasks:,} tasks, and meta/ names {n_tasks:,}")


def runs_of_numbers(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the (first, last) of each run of consecutive numbers. numbers: ascending."""
    runs = list[tuple[int, int]]()
    for number in numbers:
        if not runs:
            runs.append((number, number))
            continue
        first, last = runs[-1]
        if number == last + 1:
            runs[-1] = (first, number)
        else:
            runs.append((number, number))
    return runs


def ranges_text(runs: list[tuple[int, int]]) -> str:
    """Return the first ranges, as --episodes takes them, and the number of the others."""
    texts = []
    for first, last in runs[:MOST_NAMED]:
        text = str(first)
        if last > first:
            text = f"{first}-{last}"
        texts.append(text)
    named = ",".join(texts)
    n_more = len(runs) - MOST_NAMED
    if n_more <= 0:
        return named
    return f"{named} and {n_more} more ranges"


def _gaps(numbers: list[int], stop: int) -> list[tuple[int, int]]:
    """Return the (first, last) of each run of numbers below `stop` that are not in `numbers`, which ascend."""
    gaps = list[tuple[int, int]]()
    begin = 0
    for number in [*numbers, stop]:
        if number > begin:
            gaps.append((begin, number - 1))
        begin = number + 1
    return gaps


def _total(info: Mapping[str, Any], name: str) -> int:
    """Return a total; 0 if it is absent or no number."""
    value = info.get(name)
    return value if type(value) is int else 0
