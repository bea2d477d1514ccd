"""Repeat some steps of a run as a run of its own, `big-7.replay-1`, on other nodes; `penstock trail against` compares.

The same ranks read the same batches, so a loss that differs is the node's fault.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loader.dataset.root import Root
from loader.errors import Corrupt, InvalidCluster, InvalidRuntime, RunTaken

from ..checkpoints.restore import First
from .batch_source import BatchSource
from .launched import ORIGIN, STEPS
from .run_folder import FOLDER, RunFolder
from .run_spec import RunSpec

if TYPE_CHECKING:
    from ..compute.cluster import Cluster  # imports msgspec, which a rank needs not

EXCLUDES = ("kubernetes", "slurm")
"""Engines whose runs can avoid nodes."""
_STEPS = re.compile(r"([0-9]{1,12}):([0-9]{1,12})")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME = re.compile(r"(.+)\.replay-([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySteps:
    """Steps to repeat."""

    first: int
    """First step that is of interest; the checkpoint at or before it is loaded."""
    end: int
    """Step after the last one."""
    origin: str
    """Run whose checkpoints are loaded."""


def parse_steps(text: str) -> tuple[int, int]:
    """Return the steps of "A:B", B not included. Raises: InvalidRuntime."""
    match = _STEPS.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise InvalidRuntime(
            f"{text!r} names no steps; accepted: A:B, such as 1200:1300, B not included",
            what="steps",
            given=text,
            accepted="A:B",
        )
    return int(match[1]), int(match[2])


def rank_replay(steps: str, origin: str) -> ReplaySteps:
    """Return the steps in the environment of a rank. Raises: InvalidRuntime."""
    try:
        first, end = parse_steps(steps)
    except InvalidRuntime as error:
        raise InvalidRuntime(
            f"{STEPS} in the environment: {error}",
            what=STEPS,
            where="environment",
            given=steps,
            accepted="A:B",
        ) from None
    if not origin:
        raise InvalidRuntime(
            f"{STEPS} in the environment without {ORIGIN}, the run to repeat",
            what=ORIGIN,
            where="environment",
            accepted="the run to repeat",
        )
    return ReplaySteps(first=first, end=end, origin=origin)


def replay_origin(run: str) -> str | None:
    """Return the run that a replay repeats, by its name; None for another run."""
    match = _NAME.fullmatch(run)
    if match:
        return match[1]
    return None


def step_nodes(folder: RunFolder, first: int, end: int) -> tuple[str, ...]:
    """Return the nodes of the last starts that did these steps, by the intervals of the run. Raises: Corrupt."""
    keys = folder.interval_keys()
    nodes = set[str]()
    # The last start that did a step trained the model that went on.
    for attempt in sorted({key.attempt for key in keys}, reverse=True):
        after = [key for key in keys if key.attempt == attempt and key.end_step > first]
        chosen = [key for key in after if key.end_step < end] + [key for key in after if key.end_step >= end][
            :1
        ]
        rows = folder.intervals(chosen)
        if not rows:
            continue
        inside = (rows["first_step"] < end) & (rows["end_step"] > first)
        if inside.any():
            nodes |= {_node(folder, name) for name in rows["node"][inside].tolist()}
            # Earlier starts count for the steps before only.
            end = min(end, int(rows["first_step"][inside].min()))
        if end <= first:
            break
    return tuple(sorted(nodes))


def _node(folder: RunFolder, name: str) -> str:
    """Return a node's name of a record if it can be no list of Slurm's. Raises: Corrupt."""
    if not _HOST.fullmatch(name):
        raise Corrupt(
            f"an interval of {folder.store.url}/{folder.key('windows/')} names the node {name[:64]!r}, which is not a "
            "host name; pass --not-on NODE",
            what="node",
            where=f"{folder.store.url}/{folder.key('windows/')}",
            given=name[:64],
            accepted="a host name",
        )
    return name


def replay_spec(spec: RunSpec, steps: tuple[int, int]) -> RunSpec:
    """Return the spec of the next replay of a run: as many nodes as did the steps, no tracker.

    Raises: RunNotFound; RunTaken if the record has another spec; Corrupt.
    """
    store = Root(spec.record).store
    folder = RunFolder(store, spec.run)
    if folder.spec() != spec:
        raise RunTaken(f"{spec.run} was started from another file; give that one")
    prefix = f"{FOLDER}{spec.run}.replay-"
    names = {info.key.removeprefix(prefix).partition("/")[0] for info in store.list(prefix)}
    number = max((int(name) for name in names if re.fullmatch("[0-9]{1,9}", name)), default=0) + 1
    nodes = step_nodes(folder, *steps)
    return replace(
        spec,
        run=f"{spec.run}.replay-{number}",
        nodes=str(len(nodes)) if nodes else spec.nodes,
        trackers=(),
        env={**spec.env, STEPS: f"{steps[0]}:{steps[1]}", ORIGIN: spec.run},
    )


def without_nodes(cluster: "Cluster", nodes: Collection[str]) -> "Cluster":
    """Return a cluster whose starts get none of these nodes. Raises: InvalidCluster if it cannot exclude any."""
    if not nodes:
        return cluster
    if cluster.engine == "kubernetes":
        excluded = tuple(sorted({*cluster.kubernetes.excluded_nodes, *nodes}))
        return replace(cluster, kubernetes=replace(cluster.kubernetes, excluded_nodes=excluded))
    if cluster.engine not in EXCLUDES:
        raise InvalidCluster(
            f"engine = {cluster.engine!r} excludes no nodes, and {', '.join(sorted(nodes))} are to be left out",
            what="engine",
            given=cluster.engine,
            accepted=list(EXCLUDES),
        )
    options: Sequence[str] = (*cluster.train.options, f"--exclude={','.join(sorted(nodes))}")
    return replace(cluster, train=replace(cluster.train, options=tuple(options)))


def load_origin(
    root: str, replay: ReplaySteps, state: dict[str, Any], batches: BatchSource, first: First
) -> bool:
    """Load the checkpoint before a replay's steps, of the run that it repeats; return whether there is one."""
    from ..checkpoints import Checkpoints  # imports torch

    with Checkpoints(root, replay.origin) as origin:
        before = first(lambda: max((step for step in origin.steps() if step <= replay.first), default=None))
        return before is not None and origin.load(state, batches, step=before) is not None
