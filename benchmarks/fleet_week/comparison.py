"""Compare the product's account of the week with the truth of the simulation."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import loader
from loader.order.digests import slot_identities
from penstock.train.goodput.allocations import match_attempts
from penstock.train.goodput.run_usage import slurm_usage
from penstock.train.goodput.starts import goodput, totals
from penstock.train.goodput.stretches import PARTS
from penstock.train.launch.launcher import Span
from penstock.train.launch.slurm_job import start_spans
from penstock.usage.sacct import AccountedJob, parse_jobs
from penstock.usage.totals import group_usage

from ..page import judged
from .jobs import DAY_S, GPUS, Job, us
from .week import Week

FOUND_DAYS = 2.0
SAMPLES, BATCH = 10**9, 4096
"""Of the plan whose order is computed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim, its aim, and what came out."""

    what: str
    """Claim."""
    aim: str
    """Aim."""
    figure: str
    """Outcome."""
    is_reached: bool | None = None
    """Whether it is; None for a fact beside."""

    def __str__(self) -> str:
        figure = judged(self.figure, self.is_reached is not False)
        return f"- {self.what.removeprefix('- ')}: {figure}" + (f" (aim: {self.aim})" if self.aim else "")

    @property
    def is_shown(self) -> bool:
        """Whether the page has the row: a detail, which begins with "-", only if it misses its aim."""
        return self.is_reached is False or not self.what.startswith("-")


def compare(week: Week, steps: int) -> Iterator[Row]:
    """Yield the rows of a week. steps: how many steps' order is computed."""
    yield _jobs(week)
    jobs = parse_jobs("\n".join(week.books.lines))
    yield from _goodput(week, jobs)
    yield from _usage(week, jobs)
    yield from _nodes(week)
    yield from _steps(week, steps)
    yield _rules(week)


def _jobs(week: Week) -> Row:
    ends = [job.end for job in week.jobs]
    starts = sum(job.attempts for job in week.jobs)
    figure = f"{len(ends)} runs, {ends.count('COMPLETED')} done, {len(week.books.lines)} allocations, {starts} starts"
    return Row(what="- the week", aim="", figure=figure)


def _goodput(week: Week, jobs: list[AccountedJob]) -> Iterator[Row]:
    sums, now_us = dict.fromkeys(PARTS, 0.0), us(week.now_s)
    spans: dict[str, list[Span]] = {}
    for one in jobs:
        spans.setdefault(one.name.removeprefix("pk-000000000000-"), []).extend(start_spans([one]))
    for job in week.jobs:
        if job.run not in spans:
            continue
        folder = week.books.folder(job)
        allocations = match_attempts(spans[job.run], folder.attempts(), now_us)
        starts = goodput(allocations, folder.events(), folder.interval_sums())
        for part, seconds in totals(starts).items():
            sums[part] += seconds
    truth = week.books.truth
    off = {part: abs(sums[part] - truth.parts[part]) / truth.node_s for part in PARTS}
    worst = max(off, key=lambda part: off[part])
    shares = ", ".join(f"{part} {sums[part] / truth.node_s:.2%}" for part in PARTS if sums[part])
    yield Row(
        what="goodput's parts against the truth, of all node-seconds",
        aim="1 %",
        figure=f"{off[worst]:.2%} at most",
        is_reached=off[worst] <= 0.01,
    )
    yield Row(what="- the parts", aim="", figure=shares.replace("%", " %"))
    gap = abs(sum(sums.values()) - truth.node_s) / truth.node_s
    yield Row(
        what="- their sum against what was allocated",
        aim="equal",
        figure=f"{gap:.4%} off".replace("%", " %"),
        is_reached=gap < 1e-6,
    )


def _usage(week: Week, jobs: list[AccountedJob]) -> Iterator[Row]:
    usage = slurm_usage(week.books.store, jobs, us(week.now_s))
    rows = group_usage("dataset", usage.starts, us(0), us(week.now_s) + 1_000_000)
    truth = {name: gpu_s / 3600 for name, gpu_s in week.books.truth.gpu_s.items()}
    off = {row.name: row.allocated - truth.get(row.name, 0.0) for row in rows}
    total = sum(truth.values())
    worst = max(off, key=lambda name: abs(off[name]))
    yield Row(
        what="GPU-hours by dataset against the truth",
        aim="equal",
        figure=f"{total:,.0f} h of {len(truth)} versions; {off[worst]:+,.1f} h at most",
        is_reached=not usage.problems and abs(off[worst]) <= total / 1000,
    )


NEVER = float("inf")
BAD = {
    "flip": ("with a flipped bit in 1 of 1,000 reads", "drained"),
    "crash": ("whose gangs crash after 2 h", "drained"),
    "slow": ("with slow reads", "drained"),
}
SHORT = {"flip": "flips bits", "crash": "crash their gangs", "slow": "reads slowly"}


def _first_drains(week: Week) -> dict[str, float]:
    """Return node -> days until its first drain."""
    drained: dict[str, float] = {}
    for drain in week.watch.drains:
        drained.setdefault(drain.node, (drain.drained_us - us(0)) / 1e6 / DAY_S)
    return drained


def _days(week: Week, kind: str) -> list[float]:
    """Return the days until each bad node of a kind was drained, or named."""
    named = {name: at_s / DAY_S for name, at_s in week.watch.named.items()}
    since = named if BAD[kind][1] == "named" else _first_drains(week)
    return sorted(since[node.name] for node in week.nodes if node.was_lemon == kind and node.name in since)


def _healthy_drained(week: Week) -> list[str]:
    """Return the healthy nodes that were drained, without the broken check's."""
    lemons = {node.name for node in week.nodes if node.was_lemon}
    return [name for name in _first_drains(week) if name not in lemons and week.watch.signs[name] != "check"]


def _healthy_suspects(week: Week) -> int:
    return len(week.watch.named.keys() - {node.name for node in week.nodes if node.was_lemon})


def seed_figures(week: Week) -> dict[str, list[float]]:
    """Return the figures of a seed by name: days of each bad node (NEVER: not found), counts."""
    days: dict[str, list[float]] = {}
    for kind, (_, word) in BAD.items():
        until_found = _days(week, kind)
        n_bad = sum(node.was_lemon == kind for node in week.nodes)
        days[f"{SHORT[kind]}, {word}"] = [*until_found, *[NEVER] * (n_bad - len(until_found))]
    return {
        **days,
        "healthy nodes drained": [len(_healthy_drained(week))],
        "proofs a day": [round(week.watch.n_proofs / week.days)],
    }


def _nodes(week: Week) -> Iterator[Row]:
    watch, drained = week.watch, _first_drains(week)
    lemons = {node.name for node in week.nodes if node.was_lemon}
    for kind, (text, word) in BAD.items():
        own = [node for node in week.nodes if node.was_lemon == kind]
        days = _days(week, kind)
        found = ", ".join(f"{day:.2f}" for day in days)
        yield Row(
            what=f"- {len(own)} {text}",
            aim=f"all {word} in {FOUND_DAYS:g} days",
            figure=f"{len(days)}" + (f" after {found} days" if days else ""),
            is_reached=len(days) == len(own) and all(day <= FOUND_DAYS for day in days),
        )
    yield Row(
        what="- healthy nodes that were suspects, without the broken check's",
        aim="",
        figure=str(_healthy_suspects(week)),
    )
    by_check = [name for name in drained if watch.signs[name] == "check" and name not in lemons]
    healthy = _healthy_drained(week)
    yield Row(
        what="- healthy nodes drained",
        aim="0",
        figure=str(len(healthy)),
        is_reached=not healthy,
    )
    began_s = watch.check_from_s
    alerts = [at_s for at_s, _ in watch.alerts if began_s <= at_s < began_s + DAY_S]
    yield Row(
        what="a check begins to fail everywhere",
        aim="1 drained at most, 1 alert",
        figure=f"{len(by_check)} drained, {len(alerts)} alert",
        is_reached=len(by_check) <= 1 and len(alerts) == 1,
    )


def _steps(week: Week, count: int) -> Iterator[Row]:
    """Check that checkpoints hold each step once, and that a step is the same at any number of ranks."""
    untrained = 0
    for job in week.jobs:
        end = 0
        for first, upto, _ in job.lineage:
            untrained += abs(first - end)
            end = upto
        untrained += job.end == "COMPLETED" and end != job.steps
    draw = random.Random(len(week.jobs))
    changed = [job for job in week.jobs if len({nodes for *_, nodes in job.lineage}) > 1]
    plan = loader.plan({"a": loader.synthetic(SAMPLES)}, seed=7, global_batch=BATCH)
    different = 0
    trained = changed or [job for job in week.jobs if job.lineage]
    for _ in range(count):
        job = draw.choice(trained)
        first, end, nodes = draw.choice(job.lineage)
        different += not _is_same(plan, draw.randrange(first, end), nodes * GPUS)
    yield Row(
        what="steps trained never or twice",
        aim="0",
        figure=f"{untrained} of {sum(_held(job) for job in week.jobs):,}",
        is_reached=untrained == 0,
    )
    yield Row(
        what=f"- of {count} steps of runs that changed their size: ranks' slots are another batch",
        aim="0",
        figure=f"{different}, {len(changed)} such runs",
        is_reached=different == 0,
    )


def _held(job: Job) -> int:
    return job.lineage[-1][1] if job.lineage else 0


def _is_same(plan: loader.Plan, step: int, ranks: int) -> bool:
    """Return whether the ranks' parts of a step are, together, the step of one rank."""
    whole = plan.slots(step)
    parts = [plan.stack([step], rank, ranks).slots for rank in range(ranks)]
    ordinals = np.concatenate([part.ordinal for part in parts])
    identities = np.concatenate([slot_identities(plan, part) for part in parts])
    return np.array_equal(ordinals, whole.ordinal) and np.array_equal(
        identities, slot_identities(plan, whole)
    )


def _rules(week: Week) -> Row:
    over = week.over_by_rule
    wrong = [job.run for job in over if job.bug_step is None]
    return Row(
        what="runs without a bug among those ended after two failures at one step",
        aim="0",
        figure=f"{len(wrong)} of {len(over)}",
        is_reached=not wrong,
    )
