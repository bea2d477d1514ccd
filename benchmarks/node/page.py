"""Markdown from what was measured: what comes as it is in one table, and every table in full. Nothing here measures."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import sections
from ..contest import BEFORE
from ..page import MIB, Turns, fastest, is_of, rate, ratios, shown, theirs_of
from ..rows import AS_IT_COMES, LIMIT, OURS
from ..sections import END
from .measure import Table, Training

OUR_DEFAULT = f"{OURS}, {AS_IT_COMES}"
NONE = "—"


def median(turns: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.median(one[name] for one in turns)


def share(turns: Turns, name: str, of: str | None) -> str:
    """The ratio within a round, and of whom."""
    return f"{statistics.median(ratios(turns, name, of)):.2f}" if of in turns else NONE


def limit_of(turns: Turns) -> str | None:
    return fastest(turns, lambda name: is_of(name, LIMIT))


def fixed_of(turns: Turns) -> str | None:
    """The fastest of our contestants that were told how."""
    return fastest(turns, lambda name: is_of(name, OURS) and AS_IT_COMES not in name)


def defaults(
    tables: Iterable[Table], trainings: Iterable[Training], around: Mapping[str, float] | None = None
) -> list[str]:
    """What a user gets who sets nothing, a line per row."""
    lines = [
        "| nothing set | samples/s | of the limit | of the best choice | of the fastest peer | first batch, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for table in tables:
        for name in (one for one in table.turns if AS_IT_COMES in one):
            turns = table.turns[name]
            best, peer = fixed_of(table.turns), theirs_of(table.turns, "any")
            extra = "" if name == OUR_DEFAULT else f", `{name.removeprefix(OUR_DEFAULT + ', ')}`"
            cells = [
                f"{table.row.short}{extra}",
                f"{statistics.median(map(rate, turns)):,.0f}",
                share(table.turns, name, limit_of(table.turns)),
                f"{share(table.turns, name, best)} ({(best or NONE).removeprefix(f'{OURS}, ')})",
                f"{share(table.turns, name, peer)} ({peer.replace(', in process', '')})" if peer else NONE,
                f"{median(turns, 'first_s'):.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    work = []
    if around:
        work = [
            f"Around a photo's decoder the Loader takes {around['around_us']:.0f} us of the processor: with reads, "
            f"checksums, and {around['copy_us']:.0f} us for the copy into the batch.",
            "",
        ]
    return [*lines, "", *work, *lost(trainings)]


def processor(turns: Sequence[Mapping[str, Any]]) -> str:
    """Microseconds per sample, and the kernel's share of them."""
    used = [1e6 * one["cpu_s"] / one["samples"] for one in turns]
    kernel = [one["kernel_s"] / max(1e-9, one["cpu_s"]) for one in turns]
    return f"{statistics.median(used):.1f} ({statistics.median(kernel):.0%} kernel)"


def full(table: Table) -> list[str]:
    """One table: every contestant with so many workers."""
    limit = limit_of(table.turns)
    lines = [
        f"### {table.row.title}: {table.workers} workers",
        "",
        "| contestant | samples/s | of the limit | CPU us per sample | first batch, s | took | MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in in_order(table.turns):
        turns = table.turns[name]
        first = f"{median(turns, 'first_s'):.2f}" if "first_s" in turns[0] else ""
        cells = [
            name,
            shown([rate(one) for one in turns], 0),
            share(table.turns, name, limit),
            processor(turns),
            first,
            turns[0].get("choice", ""),
            f"{median(turns, 'memory_bytes') / MIB:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {name} | left out: {why} | | | | | |" for name, why in table.failed.items()]
    return [*lines, "", f"Limit: {table.row.limit}", "", *changes(table)]


def changes(table: Table) -> list[str]:
    """Return a table of penstock's contestants against the same of another checkout, or nothing without one."""
    lines = []
    for earlier in table.turns:
        if not is_of(earlier, BEFORE):
            continue
        ours = earlier.replace(BEFORE, OURS, 1)
        if ours in table.turns:
            speeds = ratios(table.turns, ours, earlier)
            costs = [
                _cpu_per_sample(now) / _cpu_per_sample(before)
                for now, before in zip(table.turns[ours], table.turns[earlier], strict=True)
            ]
            lines.append(f"| {ours} | {shown(speeds, 3)} | {shown(costs, 3)} |")
    if not lines:
        return []
    return [
        "| contestant | speed, as a ratio to the checkout before | processor time of a sample, likewise |",
        "| --- | --- | --- |",
        *lines,
        "",
    ]


def _cpu_per_sample(turn: Mapping[str, Any]) -> float:
    seconds: float = turn["cpu_s"] / turn["samples"]
    return seconds


def in_order(turns: Turns) -> list[str]:
    """Defaults first, then our fixed choices, then peers, then the machine's limit."""

    def place(name: str) -> int:
        return 0 if AS_IT_COMES in name else 1 if is_of(name, OURS) else 3 if is_of(name, LIMIT) else 2

    return sorted(turns, key=place)


def lost(trainings: Iterable[Training]) -> list[str]:
    """Trainings: the share of the device that is lost against batches that lie on it."""
    lines: list[str] = []
    for training in trainings:
        lines += [
            f"| {training.model} on a {training.device}, batches of {training.batch}, {training.workers} workers "
            "| lost | ms per step | on the device | waiting for a batch | handing it over | took |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name in in_order(training.turns):
            turns = training.turns[name]
            parts = [f"{1e3 * median(turns, part):.1f}" for part in ("step_s", "base_s", "wait_s", "move_s")]
            percent = [100 * one["lost"] for one in turns]
            lines.append(
                f"| {name} | {shown(percent, 1)} % | {' | '.join(parts)} | {turns[0].get('choice', '')} |"
            )
        lines += [f"| {name} | left out: {why} | | | | | |" for name, why in training.failed.items()]
        lines.append("")
    return lines


def mark(cores: int) -> str:
    """Return the comment before the figures of a machine with so many cores in docs/benchmarks.md."""
    return f"<!-- {cores} cores -->"


def put(text: str, cores: int, section: str) -> str:
    """Return a page with its section on so many cores replaced, or added behind those that it has."""
    begin = mark(cores)
    whole = f"{begin}\n{section}\n{END}"
    if begin not in text:
        behind = sections.mark("benchmarks")
        return text.replace(behind, f"{whole}\n\n{behind}")
    return re.sub(f"{re.escape(begin)}.*?{re.escape(END)}", lambda _: whole, text, flags=re.DOTALL)


def sections_of(text: str) -> list[str]:
    """Return the sections of all machines that a page has, with their marks."""
    return re.findall(rf"<!-- \d+ cores -->.*?{re.escape(END)}", text, flags=re.DOTALL)


README_CORES = 2
SPEED = """\
Photos decoded and cropped at random, with default settings: {rate} samples/s on two cores, {limit} of bare loops and
{peer} times the fastest peer (`python -m benchmarks.node`). A node of 16 cores, and rows where others are faster:
[docs/benchmarks.md](docs/benchmarks.md).
"""


def readme(text: str, summary: str) -> str:
    """Return the README with the speed of a summary. Raises: ValueError if one of the two lacks its place."""
    photos = re.search(
        r"^\| Photos \| ([\d,]+)[^|]*\| ([\d.]+) \|[^|]*\| ([\d.]+) \(", summary, flags=re.MULTILINE
    )
    section = re.search(r"(?<=\n\n)Photos decoded and cropped at random, .*?\n(?=\n)", text, flags=re.DOTALL)
    if photos is None or section is None:
        raise ValueError("README.md needs a row of photos with the limit and a peer; give more --seconds")
    rate, limit, peer = photos.groups()
    return text.replace(section[0], SPEED.format(rate=rate, limit=limit, peer=peer))
