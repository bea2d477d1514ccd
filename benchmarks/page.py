"""The section of docs/benchmarks.md on all rows. Nothing here measures."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .rows import LIMIT, OURS, TITLES, Aim, Row, Store

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
    reached = "yes" if statistics.median(found) >= aim.at_least else "no"
    who = "" if aim.of in (LIMIT, theirs) else f" ({theirs})"
    return f"{aim.text}{who} | {aim.at_least:g} | {shown(found)} | {reached} |"


def _shown_of(turns: Turns) -> Turns:
    """Return the turns of the limit, of penstock's settings, and of the fastest peers in their fastest setting."""
    speeds = {name: statistics.median(map(rate, found)) for name, found in turns.items()}
    peers: dict[str, str] = {}
    for name in sorted(speeds, key=lambda name: -speeds[name]):
        if not is_of(name, OURS) and not is_of(name, LIMIT):
            peers.setdefault(name.partition(",")[0], name)
    fast = list(peers.values())[:N_PEERS]
    return {
        name: turn for name, turn in turns.items() if name in fast or is_of(name, OURS) or is_of(name, LIMIT)
    }


def throughput(
    row: Row, turns: Turns, spread: Mapping[str, float], failed: Mapping[str, str], sample_bytes: float
) -> list[str]:
    """Return a section: a line per contestant with its speed and cost, of the fastest peers."""
    lines = [
        f"## {row.title}",
        "",
        "| contestant | samples/s | spread | CPU s per GiB | MiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in _shown_of(turns).items():
        cpu = statistics.median(one["cpu_s"] / (one["samples"] * sample_bytes / GIB) for one in found)
        cells = [
            name,
            shown([rate(one) for one in found], 0),
            f"{spread[name]:.1f}" if name in spread else "",
            f"{cpu:.2f}",
            f"{statistics.median(one['memory_bytes'] for one in found) / MIB:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {name} | failed: {why} | | | |" for name, why in failed.items()]
    return [*lines, "", f"Bound of penstock: {row.bound}", ""]


def store(
    row: Store, turns: Turns, spread: Mapping[str, float], failed: Mapping[str, str], sample_bytes: float
) -> list[str]:
    """A section on races: when the first batch came, how fast it went on, and what the store served meanwhile."""
    racing = row.resume_at == 0
    titles = ["contestant", "first batch, s", *(["samples/s with its start", "steady"] if racing else [])]
    titles += ["MB served", "requests", "spread", "CPU s" + (" per GiB" if racing else "")]
    lines = [f"## {row.title}", "", f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, found in turns.items():
        gib = statistics.median(one["samples"] for one in found) * sample_bytes / GIB if racing else 1
        cells = [name, shown([one["first_s"] for one in found])]
        if racing:
            cells += [shown([rate(one) for one in found], 0), shown([one["steady"] for one in found], 0)]
        cells += [
            f"{statistics.median(one['bytes'] for one in found) / 1e6:,.0f}",
            f"{statistics.median(one['requests'] for one in found):,.0f}",
            f"{spread[name]:.1f}" if name in spread else "",
            f"{statistics.median(one['cpu_s'] for one in found) / gib:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {name} | failed: {why} |{' |' * (len(titles) - 2)}" for name, why in failed.items()]
    return [*lines, "", f"Bound of penstock: {row.bound}", ""]


REST = "## All rows, on two cores"

N_PEERS = 2
HOW_TO_READ = """\
The tables below hold the {peers} fastest peers of a row, each in its fastest setting.

**spread**: twentieths of the data set in a batch; chance gives {uniform}; a low figure is a poor shuffle.
**CPU s per GiB**: of stored samples, all processes. **MiB**: anonymous and shared memory, Python and torch included."""


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
    picture: str,
) -> str:
    """Return the section of `python -m benchmarks`."""
    peers = ", ".join(f"{TITLES.get(peer, peer)} {version}" for peer, version in versions.items())
    lines = [
        REST,
        "",
        f"Made by `{command}` (`make bench`) on {machine}.{note and f' **{note}**'}",
        "Samples are shuffled, from files in the page cache; every sample of 20 batches is compared with the written",
        "one.",
        "",
        f"Peers: {peers}.",
        "",
        "| row | against | to reach | measured | reached |",
        "| --- | --- | --- | --- | --- |",
        *verdicts,
        "",
        *([f"![Samples per second of every contestant]({picture})", ""] if picture else []),
        *HOW_TO_READ.format(
            peers=N_PEERS, uniform=f"{uniform(64):.1f} of a batch of 64 ({uniform(32):.1f} of 32)"
        ).splitlines(),
        "",
        *sections,
    ]
    return "\n".join(lines)
