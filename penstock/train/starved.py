"""Say what a run's GPUs waited for: stages of the loader, all ranks or some nodes, and the slowest samples.

Ranks step together, so an interval waits as long as its slowest rank; a rank with at least half of that waits too.
Among ranks that read equally fast only the last one waits, because the others read ahead meanwhile. So a node is named
if its reads, or the stage, took twice the others' time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.run.batch.batch import MAKING
from loader.run.metrics import LIMITS, WAITS

from ..text import lines_text

Columns = Mapping[str, NDArray[Any]]
SLOWEST = 10
"""Samples and nodes that are named."""
SLOWER = 2.0
"""Times the others' median from which a node is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWait:
    """A node whose ranks others waited for."""

    node: str
    """Name."""
    share: float
    """Share of the run's waiting, from 0 to 1."""
    read_s: float
    """Median latency of its reads."""
    others_read_s: float
    """Median latency of the other nodes' reads; 0 without others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSampleWait:
    """The slowest sample of a step that waited."""

    step: int
    """Global step."""
    wait_s: float
    """Seconds that its rank waited for the step's batch."""
    seconds: float
    """Seconds that the stage took for the sample or its read."""
    stage: str
    """Stage of the loader."""
    node: str
    """Node of the rank."""
    rank: int
    source: str
    """Source of the plan."""
    key: str
    """The sample's key."""
    version: str
    """Name of the version."""
    path: str
    """Path of the shard."""
    offset: int
    """First byte of the read."""
    nbytes: int
    """Bytes of the read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """Waiting of a start, by stage, node and sample."""

    attempt: int
    """Number of the start."""
    first_step: int
    """First step of its intervals."""
    end_step: int
    """Step after the last one."""
    share: float
    """Share of the steps' time that was waited for data, from 0 to 1."""
    together: float
    """Share of the waiting that was not caused by a few nodes, from 0 to 1."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Stage of the loader -> share of the waiting, the largest first."""
    nodes: Sequence[NodeWait] = ()
    """Nodes that others waited for, the worst first."""
    slowest: Sequence[SlowSampleWait] = ()
    """Slowest samples, the longest wait first."""

    @property
    def is_starved(self) -> bool:
        """True if it waited for more than the hand-over of batches."""
        return self.share >= WAITS

    def to_json(self) -> dict[str, Any]:
        """Return the facts for `--json`."""
        return {**asdict(self), "starved": self.is_starved}

    def to_text(self) -> str:
        """Return lines for a person."""
        steps = f"attempt {self.attempt}, steps {self.first_step:,} to {self.end_step:,}"
        lines = [f"{steps}: waited for data {_percent(self.share)} of the time of steps"]
        if not self.is_starved:
            return f"{lines[0]}; the training is slower than the loader"
        shares = ", ".join(f"{stage} {_percent(part)}" for stage, part in self.stages.items() if part > 0.005)
        lines.append(f"waiting by stage: {shares}")
        if self.together > 0.5:
            limit = LIMITS[next(iter(self.stages))]
            lines.append(f"no node was slower than the others in {_percent(self.together)} of it: {limit}")
        else:
            lines.append(f"slow nodes made the others wait in {_percent(1 - self.together)} of it:")
            lines += map(_node_text, self.nodes)
        if self.slowest:
            lines.append("slowest samples:")
        for sample in self.slowest:
            end = sample.offset + sample.nbytes
            lines.append(
                f"  step {sample.step:,} waited {sample.wait_s:.3f} s on {sample.node}: {sample.stage} of "
                f"{sample.version} {sample.key!r} took {sample.seconds:.3f} s, {sample.path} bytes "
                f"[{sample.offset}:{end}]"
            )
        return lines_text(lines)


def _node_text(node: NodeWait) -> str:
    text = f"  {node.node}: {_percent(node.share)} of the waiting, a read takes {node.read_s:.3f} s"
    if node.others_read_s:
        text += f", elsewhere {node.others_read_s:.3f} s"
    return text


def starvation(intervals: Columns) -> Starvation:
    """Return what a start waited for. intervals: Columns of its intervals, at least one."""
    # interval: int64 [rows], the number of each row's interval. A row is a rank in an interval.
    end_steps, interval = np.unique(intervals["end_step"], return_inverse=True)
    gang_s, step_s = _gang(intervals, interval, len(end_steps))
    total_s = float(gang_s.sum())
    # For each row, the interval's wait divided among the ranks that waited, and among its causes.
    own_s = np.zeros(len(interval))
    caused_s = np.zeros(len(interval))
    # Rows grouped by interval, so that `np.split` gives each interval's rows without a search.
    order = np.argsort(interval, kind="stable")
    interval_ends = np.cumsum(np.bincount(interval))
    for number, rows in enumerate(np.split(order, interval_ends[:-1])):
        is_waiting = _waiting(intervals["wait_s"][rows])
        own_s[rows[is_waiting]] = gang_s[number] / max(1, is_waiting.sum())
        is_slow = _slower(intervals, rows, is_waiting)
        caused_s[rows[is_slow]] = gang_s[number] / max(1, is_slow.sum())
    return Starvation(
        attempt=int(intervals["attempt"][0]),
        first_step=int(intervals["first_step"].min()),
        end_step=int(intervals["end_step"].max()),
        share=_ratio(total_s, float(step_s.sum())),
        together=_ratio(total_s - float(caused_s.sum()), total_s),
        stages=_stages(intervals, own_s),
        nodes=_nodes(intervals, caused_s, total_s),
        slowest=_slowest(intervals),
    )


def _gang(intervals: Columns, interval: NDArray[Any], n_intervals: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return, for each interval, the longest wait of a rank and the longest time of its steps."""
    gang_s = np.zeros(n_intervals)
    step_s = np.zeros(n_intervals)
    # Unbuffered: several rows have the same interval.
    np.maximum.at(gang_s, interval, intervals["wait_s"])
    np.maximum.at(step_s, interval, intervals["step_s"])
    return gang_s, step_s


def _waiting(wait_s: NDArray[Any]) -> NDArray[Any]:
    longest_s = float(wait_s.max())
    if longest_s <= 0:
        return np.zeros(len(wait_s), bool)
    return np.asarray(wait_s >= longest_s / 2)


def _slower(intervals: Columns, rows: NDArray[Any], waiting: NDArray[Any]) -> NDArray[Any]:
    """Return which ranks of an interval caused its waiting: none, if most waited or they were no slower."""
    if not waiting.any() or 2 * waiting.sum() > len(rows):
        return np.zeros(len(rows), bool)
    stage = max(MAKING, key=lambda name: intervals[f"{name}_s"][rows[waiting]].sum())
    column = "slow_read_s"
    # For reads, the latency: the stage's time also counts waits for other reads.
    if stage != "fetch":
        column = f"{stage}_s"
    cost_s = intervals[column][rows]
    # Compared with ranks that did not wait: the slow ones would raise a common median.
    limit_s = SLOWER * np.median(cost_s[~waiting])
    return np.asarray(waiting & (cost_s > limit_s))


def _stages(intervals: Columns, own_s: NDArray[Any]) -> dict[str, float]:
    """Return stage -> its share of the waiting, the largest first. A rank's wait goes to stages as its making did."""
    making_s = np.stack([intervals[f"{stage}_s"] for stage in MAKING])  # [stages, rows]
    # [stages, rows]: shares of each row; 1e-12 instead of a division by zero.
    making_share = making_s / np.maximum(making_s.sum(axis=0), 1e-12)
    stage_s = making_share @ own_s
    whole_s = float(stage_s.sum())
    shares = {stage: _ratio(float(seconds), whole_s) for stage, seconds in zip(MAKING, stage_s, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _nodes(intervals: Columns, caused_s: NDArray[Any], total_s: float) -> list[NodeWait]:
    """Return the nodes that others waited for, the largest share first. caused_s: float64 [rows]: waits by row."""
    results = []
    for node in sorted(set(intervals["node"])):
        is_own = intervals["node"] == node
        seconds = float(caused_s[is_own].sum())
        if seconds <= 0:
            continue
        read_s = intervals["slow_read_s"][is_own]
        others_read_s = intervals["slow_read_s"][~is_own]
        others_median_s = 0.0
        if len(others_read_s):
            others_median_s = float(np.median(others_read_s))
        wait = NodeWait(
            node=node,
            share=_ratio(seconds, total_s),
            read_s=float(np.median(read_s)),
            others_read_s=others_median_s,
        )
        results.append(wait)
    return sorted(results, key=lambda node: -node.share)[:SLOWEST]


def _slowest(intervals: Columns) -> list[SlowSampleWait]:
    """Return the slowest samples of the intervals, the one that a rank waited longest for first."""
    rows = np.argsort(-intervals["slow_wait_s"], kind="stable")[:SLOWEST]
    texts = ("stage", "source", "key", "version", "path")
    results = []
    for row in rows.tolist():
        if intervals["slow_wait_s"][row] <= 0 or not intervals["slow_path"][row]:
            continue
        wait = SlowSampleWait(
            step=int(intervals["slow_step"][row]),
            wait_s=float(intervals["slow_wait_s"][row]),
            seconds=float(intervals["slow_s"][row]),
            node=str(intervals["node"][row]),
            rank=int(intervals["rank"][row]),
            offset=int(intervals["slow_offset"][row]),
            nbytes=int(intervals["slow_nbytes"][row]),
            **{name: str(intervals[f"slow_{name}"][row]) for name in texts},
        )
        results.append(wait)
    return results


def _ratio(part: float, whole: float) -> float:
    if whole <= 0:
        return 0.0
    return part / whole


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
