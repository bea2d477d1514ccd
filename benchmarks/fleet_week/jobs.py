"""Nodes and training jobs of a simulated week, and what becomes of an attempt up to any moment."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.train.launch.failures import Failures

HOUR_S, DAY_S = 3600.0, 86_400.0
EPOCH_S = 1_700_000_000
"""UTC seconds of the week's beginning: 2023-11-14."""
GPUS = 8
"""GPUs of a node, each with a rank."""
PRIORITIES = ("low", "normal", "high")
SIZES, SIZE_WEIGHTS = (8, 16, 32, 64, 128), (30, 30, 20, 15, 5)
"""Nodes of a job, and how often."""
DATASETS = ("photos@3", "clips@7", "speech@2", "points@11")
ACCOUNTS = {"vision": "ann", "speech": "bob", "robots": "eve"}


def us(at_s: float) -> int:
    """Return UTC microseconds of a time of the simulation, in s."""
    return round((EPOCH_S + at_s) * 1e6)


@dataclass(slots=True)
class Node:
    """A node, and what is wrong with it."""

    name: str
    """Name."""
    lemon: str = ""
    """"crash", "flip", "slow", or "" for a healthy node."""
    was_lemon: str = ""
    """The same at the beginning."""
    up_at_s: float = 0.0
    """Time from which it is up."""
    is_drained: bool = False
    """True while the watch has drained it."""
    job: "Job | None" = None
    """Job that has it."""

    def is_free(self, now_s: float) -> bool:
        """Return whether a job may have it."""
        return self.job is None and not self.is_drained and now_s >= self.up_at_s


@dataclass(slots=True)
class Attempt:
    """A start of a job's ranks: its times are drawn before, so its state at any moment follows."""

    number: int
    """Number, from 1."""
    begun_s: float
    """Time of the start."""
    nodes: int
    """Nodes that it has."""
    up_s: float
    """Time at which its ranks are up."""
    restored_s: float
    """Time at which the checkpoint is loaded; `up_s` without one."""
    first_s: float
    """Time of its first batch."""
    first_step: int
    """Step that it begins with."""
    step_s: float
    """Seconds of a step."""
    has_checkpoint: bool
    """True if it loads a checkpoint."""

    def progress(self, save_every: int, save_s: float, at_s: float) -> tuple[list[tuple[int, float]], int]:
        """Return the (step, end) of each checkpoint until then, and the steps done."""
        if at_s <= self.first_s:
            return [], self.first_step
        saves, step, now_s = list[tuple[int, float]](), self.first_step, self.first_s
        while True:
            upto = (step // save_every + 1) * save_every
            end_s = now_s + (upto - step) * self.step_s + save_s
            if end_s > at_s:
                return saves, min(upto, step + int((at_s - now_s) / self.step_s))
            saves.append((upto, end_s))
            step, now_s = upto, end_s

    def time_of(self, step: int, save_every: int, save_s: float) -> float:
        """Return when a step is done, without a checkpoint of that step."""
        saves = max(0, (step - 1) // save_every - self.first_step // save_every)
        return self.first_s + (step - self.first_step) * self.step_s + saves * save_s


@dataclass(slots=True)
class Allocation:
    """Nodes that the scheduler gave to a job: a line of its accounting."""

    begun_s: float
    """Time of its beginning, a whole second."""
    nodes: Sequence[Node]
    """Its nodes."""
    submitted_s: float
    """Time of the submission, or requeue."""
    ended_s: float | None = None
    """Time of its end, a whole second."""
    state: str = "RUNNING"
    """Slurm's word for its end."""


@dataclass(slots=True)
class Job:
    """A training job, and its state."""

    number: int
    """Slurm's job id."""
    run: str
    """Name of the run."""
    account: str
    """Account that is billed."""
    dataset: str
    """Version that it reads."""
    priority: int
    """Place in `PRIORITIES`."""
    most: int
    """Nodes that it asks for."""
    least: int
    """Nodes with which it goes on."""
    submitted_s: float
    """Time of its submission, or of its requeue."""
    steps: int
    """Steps of the training."""
    step_s: float
    """Seconds of a step with all its nodes."""
    save_every: int
    """Steps from one checkpoint to the next."""
    save_s: float
    """Seconds that a checkpoint holds the training."""
    restore_s: float
    """Seconds that loading a checkpoint takes."""
    wait_share: float
    """Share of the steps' time that its ranks wait for data."""
    bug_step: int | None = None
    """Step that raises whatever the nodes; None for a program without a bug."""
    saved: int = 0
    """Step of the newest checkpoint."""
    attempts: int = 0
    """Number of starts so far."""
    lineage: list[tuple[int, int, int]] = field(default_factory=list)
    """(first step, end, nodes) that the newest checkpoint is made of."""
    failures: Failures = field(default_factory=Failures)
    """The launcher's own memory of failures, within an allocation."""
    allocation: Allocation | None = None
    """Allocation of now."""
    attempt: Attempt | None = None
    """Attempt of now."""
    is_stopping: bool = False
    """True from the signal on."""
    end: str = ""
    """How it ended for good."""
    version: int = 0
    """Raised with each change, so that older events of the simulation no longer count."""

    def keep(self, first: int, end: int, nodes: int) -> None:
        """Note steps that a checkpoint holds now."""
        if end > first:
            self.lineage.append((first, end, nodes))
        self.saved = max(self.saved, end)


def make_nodes(draw: random.Random, count: int) -> list[Node]:
    """Return nodes, some of them lemons: three that crash, one that flips bits, one that reads slowly."""
    nodes = [Node(name=f"m{number:04d}") for number in range(count)]
    crashing = 3 if count >= 200 else 1
    lemons = ["crash"] * crashing + ["flip", "slow"]
    for node, lemon in zip(draw.sample(nodes, len(lemons)), lemons, strict=True):
        node.lemon = node.was_lemon = lemon
    return nodes


def make_jobs(draw: random.Random, n_nodes: int, days: float) -> list[Job]:
    """Return jobs that keep the nodes busy, by the time of their submission."""
    sizes = [size for size in SIZES if size <= max(SIZES[0], n_nodes // 8)]
    weights = SIZE_WEIGHTS[: len(sizes)]
    jobs, node_s, at_s = list[Job](), 0.0, 0.0
    while node_s < 1.1 * n_nodes * days * DAY_S:
        most = draw.choices(sizes, weights)[0]
        seconds = min(72 * HOUR_S, draw.lognormvariate(2.2, 0.8) * HOUR_S)
        step_s = draw.uniform(4, 20)
        steps = max(20, round(seconds / step_s))
        account = draw.choice(list(ACCOUNTS))
        jobs.append(
            Job(
                number=1000 + len(jobs),
                run=f"run-{len(jobs):04d}",
                account=account,
                dataset=draw.choice(DATASETS),
                priority=draw.choices(range(3), (50, 35, 15))[0],
                most=most,
                least=most * 3 // 4,
                submitted_s=at_s,
                steps=steps,
                step_s=step_s,
                save_every=max(5, round(draw.uniform(900, 2700) / step_s)),
                save_s=draw.uniform(2, 10),
                restore_s=draw.uniform(10, 60),
                wait_share=draw.choice((0.0, 0.01, 0.02, 0.1)),
                bug_step=draw.randrange(steps) if draw.random() < 0.03 else None,
            )
        )
        node_s += most * seconds
        if node_s > 1.2 * n_nodes * DAY_S / 4:  # the first fill the cluster at once
            at_s += draw.expovariate(1.1 * n_nodes / (most * seconds))
    return jobs
