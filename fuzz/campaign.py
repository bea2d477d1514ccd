"""Run many cases in the engine's workers, count the outcomes, and save the cases that broke a promise."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, cast

from penstock.compute.pool import LocalCompute, Progress

from .case import Case, Report, children, run_case

CONTAINED = ("timeout", "crashed")
"""Failures that the engine turns into rejected objects: a worker that hangs or dies in a decoder."""

MAX_RSS_MIB = 2048.0
"""Most memory for files of a few hundred KiB; more breaks a promise."""


class AnyCase(Protocol):
    """A case in a campaign."""

    @property
    def number(self) -> int:
        """Number of the case."""

    @property
    def seed(self) -> int:
        """Seed of the campaign."""

    def build(self) -> tuple[str, bytes, tuple[str, ...]]:
        """Return the source's name, the damaged bytes, and the names of the mutations."""

    def again(self, saved: Path) -> str:
        """Return the arguments of `python -m fuzz` that repeat the case, whose bytes are in `saved`."""


C = TypeVar("C", bound=AnyCase)


@dataclass(slots=True, kw_only=True)
class Tally:
    """counts: (outcome, code) -> cases; broken: (case, reason); slow: the ten slowest cases."""

    n_cases: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_damage: Counter[tuple[str, str]] = field(default_factory=Counter)
    cuts: Counter[tuple[str, str]] = field(default_factory=Counter)
    decodes: Counter[str] = field(default_factory=Counter)
    peers: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[AnyCase, str]] = field(default_factory=list)
    contained: list[tuple[AnyCase, str]] = field(default_factory=list)
    slow: list[tuple[float, int, str]] = field(default_factory=list)
    peak_rss_mib: float = 0.0

    def add(self, report: Report) -> None:
        """Count one report."""
        self.n_cases += 1
        self.counts[report.outcome, report.code] += 1
        for name in report.damage:
            self.by_damage[name, report.outcome] += 1
        if report.cut:
            self.cuts[report.cut, report.cut_code] += 1
        self.decodes.update(part.rpartition(" ")[2] for part in report.decoded.split(", ") if part)
        if report.peer:
            self.peers[report.peer] += 1
        self.slow = sorted([*self.slow, (report.seconds, report.number, report.source)], reverse=True)[:10]
        self.peak_rss_mib = max(self.peak_rss_mib, report.peak_rss_mib)


def campaign(
    cases: Sequence[C],
    *,
    workers: int | None,
    timeout_s: float,
    progress: Progress | None = None,
    run: Callable[[C], Report] | None = None,
) -> Tally:
    """Run the cases; return the tally. Exceptions from the engine itself are bugs and propagate."""
    tally = Tally()
    chosen = run or cast(Callable[[C], Report], run_case)
    already = children()
    with tempfile.TemporaryDirectory(prefix="fuzz-campaign-") as scratch:
        before, tempfile.tempdir = tempfile.tempdir, scratch
        engine = LocalCompute(workers)
        try:
            outcomes = engine.map(chosen, cases, timeout_s=timeout_s, progress=progress)
            for case, outcome in zip(cases, outcomes, strict=True):
                if outcome.value is not None:
                    report = outcome.value
                    tally.add(report)
                    tally.broken += [
                        (case, f"{report.source} {report.damage}: {one}") for one in report.broken
                    ]
                    if report.peak_rss_mib > MAX_RSS_MIB:
                        tally.broken.append(
                            (case, f"{report.source}: {report.peak_rss_mib:.0f} MiB of memory")
                        )
                elif outcome.error is not None:
                    tally.n_cases += 1
                    tally.counts["rejected", outcome.error.code] += 1
                    group = tally.contained if outcome.error.code in CONTAINED else tally.broken
                    group.append((case, f"{outcome.error.code}: {outcome.error.reason}"))
        finally:
            engine.close()
            tempfile.tempdir = before
        remaining = os.listdir(scratch)
        more = sorted(set(children()) - set(already))
    if remaining:
        tally.broken.append((Case(number=-1, seed=0), f"scratch that is left behind: {remaining[:5]}"))
    if more:
        tally.broken.append((Case(number=-1, seed=0), f"workers that are left behind: {more}"))
    return tally


def save(tally: Tally, folder: Path) -> Iterator[str]:
    """Write the bytes of every broken or contained case; yield how to repeat it."""
    for kind, group in (("broken", tally.broken), ("contained", tally.contained)):
        for case, why in group:
            if case.number < 0:
                yield f"{kind}: {why}"
                continue
            folder.mkdir(parents=True, exist_ok=True)
            source, data, done = case.build()
            path = folder / f"{case.seed}-{case.number}-{source.replace('/', '_')}.bin"
            path.write_bytes(data)
            facts = {"source": source, "damage": done, "why": why, "seed": case.seed, "number": case.number}
            path.with_suffix(".json").write_text(json.dumps(facts, indent=2, ensure_ascii=False))
            yield f"{kind}: case {case.number} ({source}): {why}\n  python -m fuzz {case.again(path)}"


def table(tally: Tally) -> str:
    """Return the outcomes as a Markdown table."""
    lines = [f"{tally.n_cases} cases", "", "| outcome | code | cases |", "| --- | --- | --- |"]
    lines += [f"| {outcome} | {code} | {n} |" for (outcome, code), n in sorted(tally.counts.items())]
    lines += ["", "| of the admitted, the cutter | code | cases |", "| --- | --- | --- |"]
    lines += [f"| {outcome} | {code} | {n} |" for (outcome, code), n in sorted(tally.cuts.items())]
    damages = sorted({damage for damage, _ in tally.by_damage})
    lines += ["", "| damage | admitted | rejected | dropped |", "| --- | --- | --- | --- |"]
    for damage in damages:
        counts = [str(tally.by_damage[damage, outcome]) for outcome in ("admitted", "rejected", "dropped")]
        lines.append(f"| {damage} | {' | '.join(counts)} |")
    lines += ["", f"The loader's decoders: {dict(sorted(tally.decodes.items()))}"]
    lines += [f"ffprobe, of the admitted: {dict(sorted(tally.peers.items()))}"] if tally.peers else []
    lines += [f"Peak memory of a worker: {tally.peak_rss_mib:.0f} MiB"]
    lines += ["Slowest: " + ", ".join(f"{s:.1f} s (case {n}, {name})" for s, n, name in tally.slow[:5])]
    return "\n".join(lines)
