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
CPU = Figure(head="us of processor", value=lambda turn: 1e6 * turn["cpu_s"] / turn["samples"], digits=1)
MEMORY = Figure(head="MiB", value=lambda turn: turn["memory_bytes"] / 2**20)
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
        f"Peers: {', '.join(peers) or 'none'}.",
    ]
    for peer, why in absent.items():
        lines.append(f"{TITLES.get(peer, peer)} is absent: {why}.")
    columns = ["penstock", "of torch's", *[TITLES[peer] for peer in TITLES if peer != "penstock"]]
    lines += [
        "",
        f"| of all processes | {' | '.join(columns)} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for table in tables:
        lines += _rows(table)
    for table in tables:
        for title, why in table.failed.items():
            lines.append(f"\n{table.title}: {title} failed: {why}.")
    return "\n".join([*lines, ""])


def details(tables: list[Table]) -> str:
    """Return every figure of every contestant, for the terminal."""
    lines = []
    for table in tables:
        for title, turns in table.values.items():
            cells = []
            for figure in FIGURES[table.name]:
                values = [figure.value(turn) for turn in turns]
                cells.append(f"{figure.head} {shown(values, figure.digits)}")
            lines.append(f"{table.title}: {title}: {'; '.join(cells)}")
    return "\n".join(lines)


def _rows(table: Table) -> list[str]:
    """Return a row with the contestants that run as torch's default does, and one for each other way."""
    figure = FIGURES[table.name][0]
    reference = _reference(table, figure)
    by_way: dict[str, dict[str, str]] = {}
    for title, turns in table.values.items():
        peer, _, way = title.partition(", ")
        values = [figure.value(turn) for turn in turns]
        by_way.setdefault(way, {})[peer] = f"{statistics.median(values):,.{figure.digits}f}"
    rows = []
    for number, (way, cells) in enumerate(_torch_first(by_way).items()):
        ratio = ""
        if OURS in cells:
            ratio = _ratio(table, f"{OURS}, {way}", figure, reference)
        others = [cells.get(TITLES[peer], "") for peer in TITLES if peer != "penstock"]
        head = f"{table.title}, {figure.head}: {way}"
        if number:
            head = way
        rows.append(f"| {head} | {cells.get(OURS, '')} | {ratio} | {' | '.join(others)} |")
    return rows


def _torch_first(by_way: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the ways in order, that of torch's default before the others."""
    ways = list(by_way)
    ways.sort(key=lambda way: TORCH not in by_way[way])
    return {way: by_way[way] for way in ways}


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
