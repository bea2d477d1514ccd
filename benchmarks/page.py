"""The section of docs/benchmarks.md on all rows. Nothing here measures."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .rows import AS_IT_COMES, LIMIT, OURS, TITLES, Aim, Row, Store

Turns = Mapping[str, Sequence[Mapping[str, Any]]]
GIB, MIB = 2**30, 2**20


def rate(turn: Mapping[str, Any], figure: str = "") -> float:
    """Samples per second, of all the turn or of its steady part."""
    return float(turn["steady"] if figure == "steady" else turn["samples"] / turn["seconds"])


def ratios(turns: Turns, name: str, to: str, figure: str = "") -> list[float]:
    """Within each round."""
    return [rate(a, figure) / rate(b, figure) for a, b in zip(turns[name], turns[to], strict=True)]


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range where there is one."""
    median, low, high = statistics.median(values), min(values), max(values)
    if low == high:
        return f"{median:,.{digits}f}"
    return f"{median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def judged(text: str, is_reached: bool) -> str:
    """Return a figure, bold if it misses its aim."""
    return text if is_reached else f"**{text}**"


def is_of(name: str, peer: str) -> bool:
    return name.startswith(TITLES.get(peer, peer) + ",")


def in_group(name: str, group: str) -> bool:
    return group == "any" or (", in process" in name) == (group == "in process")


def fastest(turns: Turns, among: Callable[[str], bool], figure: str = "") -> str | None:
    """The contestant with the highest median."""
    found = [name for name in turns if among(name)]

    def speed(name: str) -> float:
        return statistics.median(rate(turn, figure) for turn in turns[name])

    return max(found, key=speed, default=None)


def ours_of(turns: Turns, group: str = "any", figure: str = "") -> str | None:
    if group in turns:
        return group
    return fastest(turns, lambda name: is_of(name, OURS) and in_group(name, group), figure)


def theirs_of(turns: Turns, of: str, figure: str = "") -> str | None:
    def is_peer(name: str) -> bool:
        return not is_of(name, OURS) and not is_of(name, LIMIT)

    if of in turns:
        return of
    if of in ("any", "workers", "in process"):
        return fastest(turns, lambda name: is_peer(name) and in_group(name, of), figure)
    return fastest(turns, lambda name: is_of(name, of), figure)


def verdict(turns: Turns, aim: Aim) -> str | None:
    """One line of the summary; None where one of the two was not measured."""
    ours, theirs = ours_of(turns, aim.ours, aim.figure), theirs_of(turns, aim.of, aim.figure)
    if ours is None or theirs is None:
        return None
    found = ratios(turns, ours, theirs, aim.figure)
    who = "" if aim.of == LIMIT else theirs
    against = ": ".join(filter(None, (aim.text, who)))
    return (
        f"{against} | {judged(shown(found), statistics.median(found) >= aim.at_least)} | {aim.at_least:g} |"
    )


def setting(name: str) -> str:
    """Return the name of a contestant without its number of workers."""
    return re.sub(r", (\d+ workers|in process)", "", name)


def fastest_settings(turns: Turns) -> list[str]:
    """Return the peers, each in its fastest setting, the fastest one first."""
    speeds = {name: statistics.median(map(rate, found)) for name, found in turns.items()}
    peers: dict[str, str] = {}
    for name in sorted(speeds, key=lambda name: -speeds[name]):
        if not is_of(name, OURS) and not is_of(name, LIMIT):
            peers.setdefault(name.partition(",")[0], name)
    return list(peers.values())


def poor_shuffles(row: Row, turns: Turns, spread: Mapping[str, float]) -> dict[str, float]:
    """Return the spreads of peers that shuffle far less than by chance."""
    chance = uniform(row.batch)
    found = {name: spread[name] for name in fastest_settings(turns) if name in spread}
    return {setting(name): groups for name, groups in found.items() if groups < POOR * chance}


def throughput(row: Row, turns: Turns, sample_bytes: float) -> str:
    """Return a row of the table of costs: the limit, penstock's default and fastest setting, the fastest peer."""

    def cell(name: str | None) -> str:
        if name is None:
            return ""
        found = turns[name]
        cpu = statistics.median(one["cpu_s"] / (one["samples"] * sample_bytes / GIB) for one in found)
        mib = statistics.median(one["memory_bytes"] for one in found) / MIB
        figures = f"{statistics.median(map(rate, found)):,.0f} ({cpu:.2f}, {mib:,.0f})"
        if is_of(name, LIMIT):
            return figures
        return f"{name.removeprefix(f'{OURS}, ') if is_of(name, OURS) else setting(name)}: {figures}"

    default = next((name for name in turns if is_of(name, OURS) and name.endswith(DEFAULTS)), None)
    limit, ours = fastest(turns, lambda name: is_of(name, LIMIT)), ours_of(turns)
    peer = next(iter(fastest_settings(turns)), None)
    cells = map(cell, (limit, default, None if ours == default else ours, peer))
    return f"| {row.short} | {' | '.join(cells)} |"


def store(row: Store, turns: Turns, failed: Mapping[str, str], sample_bytes: float) -> list[str]:
    """Return a section on races: when the first batch came, how fast it went on, and what the store served."""
    lines = [
        f"## {row.title}",
        "",
        "| contestant | first batch, s | samples/s with its start | steady | MB served | requests | CPU s per GiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in turns.items():
        gib = statistics.median(one["samples"] for one in found) * sample_bytes / GIB
        cells = [
            name,
            f"{statistics.median(one['first_s'] for one in found):.2f}",
            f"{statistics.median(map(rate, found)):,.0f}",
            f"{statistics.median(one['steady'] for one in found):,.0f}",
            f"{statistics.median(one['bytes'] for one in found) / 1e6:,.0f}",
            f"{statistics.median(one['requests'] for one in found):,.0f}",
            f"{statistics.median(one['cpu_s'] for one in found) / gib:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {name} | failed: {why} | | | | | |" for name, why in failed.items()]
    return [*lines, ""]


def resumed(row: Store, turns: Turns, failed: Mapping[str, str]) -> list[str]:
    """Return a sentence on races that resume."""
    taken = [
        f"{name} {statistics.median(one['first_s'] for one in found):.2f} s, "
        f"{statistics.median(one['bytes'] for one in found) / 1e6:,.0f} MB"
        for name, found in turns.items()
    ]
    taken += [f"{name} failed: {why}" for name, why in failed.items()]
    return [f"{row.title}: {'; '.join(taken)}.", ""]


REST = "## All rows, on two cores"

POOR = 0.9
"""A spread below this share of chance is a poor shuffle."""
DEFAULTS = (AS_IT_COMES, " threads")
HOW_TO_READ = """\
CPU seconds are per stored GiB; MiB are anonymous and shared. Peers in process check no checksum.

| samples/s (CPU s per GiB, MiB) | limit | default | fastest setting | fastest peer |
| --- | --- | --- | --- | --- |"""
SHUFFLES = """\
Poor shuffles, in twentieths of the data set in a batch: {peers}. Chance gives {of_64:.1f} of a batch of
64, {of_32:.1f} of 32."""


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
    costs: Sequence[str],
    shuffles: Mapping[str, float],
    sections: Sequence[str],
    picture: str,
) -> str:
    """Return the section of `python -m benchmarks`."""
    peers = ", ".join(f"{TITLES.get(peer, peer)} {version}" for peer, version in versions.items())
    spreads = ", ".join(f"{name} {groups:.1f}" for name, groups in shuffles.items())
    poor = (
        SHUFFLES.format(peers=spreads, of_64=uniform(64), of_32=uniform(32)).splitlines() if shuffles else []
    )
    lines = [
        REST,
        "",
        f"Made by `{command}` (`make bench`) on {machine}.{note and f' **{note}**'}",
        "Samples are shuffled, from files in the page cache; 20 batches are compared with what was written.",
        "",
        f"Peers: {peers}.",
        "",
        "| row | penstock against the limit, the fastest peers | ratio | aim |",
        "| --- | --- | --- | --- |",
        *verdicts,
        "",
        *([f"![Samples per second of every contestant]({picture})", ""] if picture else []),
        *HOW_TO_READ.splitlines(),
        *costs,
        "",
        *poor,
        "",
        *sections,
    ]
    return "\n".join(lines)
