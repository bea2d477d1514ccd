"""The section of docs/benchmarks-pipeline.md from what was measured. Nothing here measures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .runs import PHOTOS, Batches
from .servers import PAGES, Served
from .ticks import Cost

LATENCY_S = 0.02
"""Of a request, where the store is far."""
HOW_TO_READ = f"""\
## Runs, ticks and pages by the number of batches

Seconds on the wall (of processors), then requests to the root's store. Batches of {PHOTOS} small photos, all stages
(feature: phash). *first*: after new batches; *far*: with {LATENCY_S * 1e3:.0f} ms more per request. Pages: seconds of a
cold visit of Chromium, medians of 3, then processor seconds of both servers.
"""
_BEGIN, _END = "<!-- python -m benchmarks.pipeline, {storage} -->", "<!-- end -->"


class Measured(NamedTuple):
    """With n batches: costs by step; served: None where the pages were not asked."""

    n: int
    costs: Mapping[str, Cost]
    served: Served | None


def section(
    batches: Batches,
    rows: Sequence[Measured],
    *,
    command: str,
    machine: str,
    storage: str,
    note: str,
) -> str:
    """All of it, as Markdown. storage: Dagster's."""
    lines = [
        f"### {storage}",
        "",
        f"Made by `{command}` on {machine}, in memory (tmpfs). {note}".rstrip(),
        "",
        *_batches(batches),
        *_ticks(rows),
        *_served(rows),
    ]
    return "\n".join(lines)


def _batches(found: Batches) -> list[str]:
    return [
        "| | ms per batch |",
        "| --- | --- |",
        f"| a run in one process | {found.run_s * 1e3:,.0f} ({found.run_cpu_s * 1e3:,.0f}) |",
        f"| its stages without Dagster | {found.stages_s * 1e3:,.0f} ({found.stages_cpu_s * 1e3:,.0f}) |",
        "",
    ]


def _ticks(rows: Sequence[Measured]) -> list[str]:
    titles = list(rows[0].costs)
    told = [
        f"| {row.n:,} | " + " | ".join(_cost(row.costs[title]) for title in titles) + " |" for row in rows
    ]
    return [
        f"| batches | {' | '.join(titles)} |",
        f"|{' --- |' * (len(titles) + 1)}",
        *told,
        "",
    ]


def _cost(found: Cost) -> str:
    return f"{found.wall_s:.2f} ({found.cpu_s:.2f}), {found.requests:,}"


def _served(rows: Sequence[Measured]) -> list[str]:
    seen = [(row.n, row.served) for row in rows if row.served is not None]
    if not seen:
        return []
    pages = list(PAGES)
    return [
        f"| partitions | {' | '.join(pages)} | processor s | code server, MiB | webserver, MiB |",
        f"|{' --- |' * (len(pages) + 4)}",
        *(
            f"| {n:,} | {' | '.join(f'{found.page_s[name]:.1f}' for name in pages)} | {found.asked_cpu_s:.1f} | "
            f"{found.code_mib:.0f} | {found.web_mib:.0f} |"
            for n, found in seen
        ),
        "",
    ]


def written(page: Path, text: str, storage: str) -> str:
    """The page with this section in place of the one it has of that storage, or at its end."""
    begin = _BEGIN.format(storage=storage)
    old = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks: the pipeline\n"
    if HOW_TO_READ not in old:
        old = f"{old.rstrip()}\n\n{HOW_TO_READ}"
    head, _, rest = old.partition(begin)
    tail = rest.partition(_END)[2] or "\n"
    return f"{head.rstrip()}\n\n{begin}\n{text.rstrip()}\n{_END}{tail}"
