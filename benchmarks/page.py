"""docs/benchmarks.md from what was measured. Nothing here measures."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .rows import LIMIT, OURS, TITLES, Aim, Row

Turns = Mapping[str, Sequence[Mapping[str, Any]]]
GIB, MIB = 2**30, 2**20


def rate(turn: Mapping[str, Any]) -> float:
    return float(turn["samples"] / turn["seconds"])


def ratios(turns: Turns, name: str, to: str) -> list[float]:
    """Within each round."""
    return [rate(a) / rate(b) for a, b in zip(turns[name], turns[to], strict=True)]


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range where there is one."""
    median, low, high = statistics.median(values), min(values), max(values)
    if low == high:
        return f"{median:,.{digits}f}"
    return f"{median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def is_of(name: str, peer: str) -> bool:
    return name.startswith(TITLES.get(peer, peer) + ",")


def in_group(name: str, group: str) -> bool:
    return group == "any" or (", in process" in name) == (group == "in process")


def fastest(turns: Turns, among: Callable[[str], bool]) -> str | None:
    """The contestant with the highest median."""
    found = [name for name in turns if among(name)]
    return max(found, key=lambda name: statistics.median(map(rate, turns[name])), default=None)


def ours_of(turns: Turns, group: str = "any") -> str | None:
    return fastest(turns, lambda name: is_of(name, OURS) and in_group(name, group))


def theirs_of(turns: Turns, of: str) -> str | None:
    if of in ("any", "workers", "in process"):
        return fastest(
            turns, lambda name: not is_of(name, OURS) and not is_of(name, LIMIT) and in_group(name, of)
        )
    return fastest(turns, lambda name: is_of(name, of))


def verdict(turns: Turns, aim: Aim) -> str | None:
    """One line of the summary; None where one of the two was not measured."""
    ours, theirs = ours_of(turns, aim.ours), theirs_of(turns, aim.of)
    if ours is None or theirs is None:
        return None
    found = ratios(turns, ours, theirs)
    reached = "yes" if statistics.median(found) >= aim.at_least else "no"
    who = "" if aim.of == LIMIT else f" ({theirs})"
    return f"{aim.text}{who} | {aim.at_least:g} | {shown(found)} | {reached} |"


def throughput(
    row: Row, turns: Turns, spread: Mapping[str, float], failed: Mapping[str, str], sample_bytes: float
) -> list[str]:
    """A section: one line per contestant, its speed, and what it took."""
    limit = fastest(turns, lambda name: is_of(name, LIMIT))
    ours = {group: ours_of(turns, group) for group in ("workers", "in process")}
    lines = [
        f"## {row.title}",
        "",
        "| contestant | samples/s | of the limit | penstock is | spread | CPU s per GiB | MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in turns.items():
        like = ours["in process" if ", in process" in name else "workers"]
        cpu = statistics.median(one["cpu_s"] / (one["samples"] * sample_bytes / GIB) for one in found)
        cells = [
            name,
            shown([rate(one) for one in found], 0),
            f"{statistics.median(ratios(turns, name, limit)):.3f}" if limit else "",
            f"{shown(ratios(turns, like, name))} x" if like and name not in (like, limit) else "",
            f"{spread[name]:.1f}" if name in spread else "",
            f"{cpu:.2f}",
            f"{statistics.median(one['memory_bytes'] for one in found) / MIB:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {name} | failed: {why} | | | | | |" for name, why in failed.items()]
    return [*lines, "", f"Limit: {row.limit}", f"What bounds penstock here: {row.bound}", ""]


HOW_TO_READ = """\
**samples/s**: the median over the rounds, with its range. **of the limit**, **penstock is**: medians of the ratio
within a round; the second says how many times faster penstock is than the row's contestant, with workers against those
with workers, in process against those in process. **spread**: of how many twentieths of the data set a batch has
samples, on average; samples drawn by chance give {uniform}. A low figure is a poor shuffle, which makes reading easier.
**CPU s per GiB**: processor seconds of all of a contestant's processes per GiB of stored samples. **MiB**: their
anonymous and shared memory, Python and torch included, the page cache not."""


def uniform(batch: int, groups: int = 20) -> float:
    """Expected number of groups that a batch drawn by chance has samples of."""
    return groups * (1 - (1 - 1 / groups) ** batch)


def whole(
    *,
    command: str,
    machine: str,
    note: str,
    versions: Mapping[str, str],
    verdicts: Sequence[str],
    sections: Sequence[str],
) -> str:
    """The page."""
    peers = ", ".join(f"{TITLES.get(peer, peer)} {version}" for peer, version in versions.items())
    lines = [
        "# Benchmarks",
        "",
        f"Made by `{command}` (`make bench`) on {machine}.{note and f' **{note}**'}",
        "Contestants serve the same samples, each from its own format and in a process of its own pinned environment",
        "(benchmarks/peers). They take turns within every round, and all others are stopped meanwhile, so a machine",
        "whose speed drifts slows all of them alike. Files are in the page cache, shuffling is on, and every sample of",
        "20 batches is checked to be what was written.",
        "",
        f"Peers: {peers}.",
        "",
        "| row | against | to reach | measured | reached |",
        "| --- | --- | --- | --- | --- |",
        *verdicts,
        "",
        *HOW_TO_READ.format(
            uniform=f"{uniform(64):.1f} of a batch of 64 ({uniform(32):.1f} of 32)"
        ).splitlines(),
        "",
        *sections,
    ]
    return "\n".join(lines)
