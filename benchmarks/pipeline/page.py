"""The section of docs/benchmarks-pipeline.md from what was measured. Nothing here measures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .runs import PHOTOS, Batches
from .servers import Served
from .ticks import Cost

LATENCY_S = 0.02
"""Of a request, where the store is far."""
HEAD = f"""\
# Runs, ticks and pages

Made by `{{command}}` on {{machine}}, in memory (tmpfs). {{note}}

A batch of {PHOTOS} small photos takes {{run}} ms through all stages in a run of one process, without Dagster
{{stages}}. Below: seconds, then requests to the root's store, with {{n:,}} batches. *far*: {LATENCY_S * 1e3:.0f} ms
more per request.

| | after new batches | later | far |
| --- | --- | --- | --- |"""
PAGES = """
Pages in Chromium with {n:,} partitions, cold, in s: {pages}."""


class Measured(NamedTuple):
    """With n batches: costs by step; served: None where the pages were not asked."""

    n: int
    costs: Mapping[str, Cost]
    served: Served | None


def section(batches: Batches, rows: Sequence[Measured], *, command: str, machine: str, note: str) -> str:
    """Return the section on the largest number of batches."""
    row = rows[-1]
    head = HEAD.format(
        command=command,
        machine=machine,
        note=note,
        run=_cost_ms(batches.run_s, batches.run_cpu_s),
        stages=_cost_ms(batches.stages_s, batches.stages_cpu_s),
        n=row.n,
    )
    lines = [*(line.rstrip() for line in head.splitlines()), *_ticks(row.costs)]
    if row.served is not None:
        found = row.served
        pages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.page_s.items())
        lines += PAGES.format(n=row.n, pages=pages, code=found.code_mib, web=found.web_mib).splitlines()
    return "\n".join(lines)


def _cost_ms(wall_s: float, cpu_s: float) -> str:
    return f"{wall_s * 1e3:,.0f} ({cpu_s * 1e3:,.0f})"


def _ticks(costs: Mapping[str, Cost]) -> Iterator[str]:
    """Rows of steps."""
    for step in dict.fromkeys(name.partition(", ")[0] for name in costs):
        cells = (costs.get(name) for name in (f"{step}, first", step, f"{step}, far"))
        yield f"| {step} | {' | '.join(_cost(cell) if cell else '' for cell in cells)} |"


def _cost(found: Cost) -> str:
    return f"{found.wall_s:.2f}, {found.requests:,}"
