"""The section of the page, and the verdict on each aim."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..page import judged, shown

TITLES = {
    "penstock": "penstock",
    "torch": "torch DataLoader",
    "torchdata": "StatefulDataLoader",
    "grain": "Grain",
}
"""Peer -> its name on the page."""
OURS = TITLES["penstock"]
TORCH = TITLES["torch"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What was measured of a row."""

    name: str
    title: str
    values: Mapping[str, list[dict[str, Any]]]
    failed: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A column: its head, the figure of a round, digits."""

    head: str
    value: Callable[[dict[str, Any]], float]
    digits: int = 0


RATE = Figure(head="samples/s", value=lambda turn: turn["samples"] / turn["seconds"])
CPU = Figure(head="processor us a sample", value=lambda turn: 1e6 * turn["cpu_s"] / turn["samples"], digits=1)
MEMORY = Figure(head="MiB after an epoch", value=lambda turn: turn["memory_bytes"] / 2**20)
FIRST = Figure(head="first batch, s", value=lambda turn: turn["first_s"], digits=1)
ITEMS = Figure(head="items made", value=lambda turn: turn["items"])
RESUME_S = Figure(head="seconds", value=lambda turn: turn["seconds"], digits=3)

FIGURES: dict[str, tuple[Figure, ...]] = {
    "photos": (CPU, RATE),
    "small": (CPU, RATE),
    "arrays": (MEMORY, FIRST),
    "strings": (MEMORY, FIRST),
    "resume": (ITEMS, RESUME_S),
}
"""Row -> its columns; the first is compared with torch's."""
AIMS = {"photos": 1.05, "small": 3.0, "arrays": 1.1, "strings": 1.2}
"""Row -> most that penstock may take of torch's first figure."""


def section(
    command: str,
    machine: str,
    note: str,
    versions: Mapping[str, str],
    absent: Mapping[str, str],
    tables: list[Table],
) -> str:
    """Return the section as Markdown."""
    peers = [f"{TITLES.get(peer, peer)} {text}" for peer, text in versions.items() if text]
    lines = [
        "# Any Dataset",
        "",
        f"Made by `{command}` on {machine}. {note}".strip(),
        f"Peers: {', '.join(peers) or 'none'}. Time and memory are those of all processes.",
    ]
    for peer, why in absent.items():
        lines.append(f"{TITLES.get(peer, peer)} is absent: {why}.")
    for table in tables:
        lines += ["", *_table(table)]
    return "\n".join([*lines, ""])


def _table(table: Table) -> list[str]:
    figures = FIGURES[table.name]
    heads = [figure.head for figure in figures]
    lines = [
        f"| {table.title} | {' | '.join(heads)} | of torch's |",
        "| --- |" + " --- |" * (len(heads) + 1),
    ]
    reference = _reference(table, figures[0])
    for title, turns in table.values.items():
        cells = []
        for figure in figures:
            values = [figure.value(turn) for turn in turns]
            cells.append(shown(values, figure.digits))
        cells.append(_ratio(table, title, figures[0], reference))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    for title, why in table.failed.items():
        lines.append(f"| {title} | failed: {why} |{' |' * len(heads)}")
    return lines


def _reference(table: Table, figure: Figure) -> list[float]:
    """Return torch's figure in each round: of its default, the first of its ways."""
    for title, turns in table.values.items():
        if title.startswith(f"{TORCH},"):
            return [figure.value(turn) for turn in turns]
    return []


def _ratio(
    table: Table,
    title: str,
    figure: Figure,
    reference: list[float],
) -> str:
    if not reference:
        return ""
    ratios = []
    for turn, of_torch in zip(table.values[title], reference, strict=True):
        ratios.append(figure.value(turn) / max(of_torch, 1e-9))
    text = shown(ratios)
    if table.name not in AIMS or not title.startswith(f"{OURS},"):
        return text
    return judged(text, statistics.median(ratios) <= AIMS[table.name])
