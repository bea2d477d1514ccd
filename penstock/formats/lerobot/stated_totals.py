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
    inside = [number for number in lengths if number < n_episodes]
    n_missing = n_episodes - len(inside)
    if n_missing > 0:
        names = ranges_text(_gaps(sorted(inside), n_episodes))
        rows = f" ({n_rows - rows_there:,} rows)" if n_rows > rows_there else ""
        stated.lacks(
            f"{where} states {n_episodes:,} episodes, and meta/ names {len(lengths):,}: it lacks episodes {names}{rows}"
        )
    elif n_rows > rows_there:
        stated.lacks(f"{where} states {n_rows:,} frames, and the episodes of meta/ have {rows_there:,}")
    total_tasks = _total(info, "total_tasks")
    if total_tasks > n_tasks:
        stated.lacks(f"{where} states {total_tasks:,} tasks, and meta/ names {n_tasks:,}")


def runs_of_numbers(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the (first, last) of each run of consecutive numbers. numbers: ascending."""
    runs = list[tuple[int, int]]()
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def ranges_text(runs: list[tuple[int, int]]) -> str:
    """Return the first ranges, as --episodes takes them, and the number of the others."""
    texts = []
    for first, last in runs[:MOST_NAMED]:
        texts.append(f"{first}-{last}" if last > first else str(first))
    more = f" and {len(runs) - MOST_NAMED} more ranges" if len(runs) > MOST_NAMED else ""
    return f"{','.join(texts)}{more}"


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
