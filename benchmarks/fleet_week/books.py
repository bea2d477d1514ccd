"""Records of the simulation, as the scheduler and the ranks write them, and the truth beside them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from loader.dataset.log.entries import canonical
from loader.storage import Store
from penstock.train.goodput.stretches import PARTS
from penstock.train.intervals import ROW, interval_bytes
from penstock.train.run_folder import FORMAT, RunFolder
from penstock.train.run_spec import RunSpec
from penstock.usage.sacct import FIELDS

from .jobs import ACCOUNTS, GPUS, PRIORITIES, Allocation, Attempt, Job, us

INTERVAL_S = 60.0
"""As the ranks keep them."""


@dataclass(slots=True)
class Truth:
    """Node-seconds as they were."""

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Part of goodput -> node-seconds."""
    gpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Dataset version -> GPU-seconds."""
    node_s: float = 0.0
    """Node-seconds that were allocated."""


class Books:
    """A record in memory, lines of accounting, intervals, and the truth."""

    def __init__(self, store: Store) -> None:
        self.store, self.truth = store, Truth()
        self.lines: list[str] = []
        self._done: dict[str, int] = defaultdict(int)

    def folder(self, job: Job) -> RunFolder:
        """Return the record of a job's run."""
        return RunFolder(self.store, job.run)

    def submitted(self, job: Job) -> None:
        """Store the run's file."""
        spec = RunSpec(
            run=job.run,
            command=("python", "train.py"),
            nodes=f"{job.least}-{job.most}",
            ranks_per_node=GPUS,
            gpus_per_node=GPUS,
            priority=PRIORITIES[job.priority],
            record=self.store.url,
        )
        self.folder(job).put_spec(spec)

    def attempt_ended(self, job: Job, attempt: Attempt, at_s: float, last: str, done: int) -> None:
        """Write the events of an attempt up to its end, and keep what its checkpoints hold.

        last: "stopped", "ended" or "failed", which rank 0 writes; "" if it was killed. done: steps at the end.
        """
        saves, _ = attempt.progress(job.save_every, job.save_s, at_s)
        saves = [one for one in saves if one[0] < done]
        if last in ("stopped", "ended"):
            saves.append((done, at_s))
        if saves:
            job.keep(attempt.first_step, saves[-1][0], attempt.nodes)
        events: list[tuple[float, str, int, dict[str, object]]] = []
        if at_s >= attempt.up_s:
            events.append((attempt.up_s, "ranks_up", 0, {}))
        if attempt.has_checkpoint and at_s >= attempt.restored_s:
            took_us = round((attempt.restored_s - attempt.up_s) * 1e6)
            events.append((attempt.restored_s, "restored", attempt.first_step, {"took_us": took_us}))
        if at_s >= attempt.first_s:
            took_us = round((attempt.first_s - attempt.restored_s) * 1e6)
            versions = [{"source": "a", "id": "v", "name": job.dataset}]
            facts = {"took_us": took_us, "versions": versions}
            events.append((attempt.first_s, "first_batch", attempt.first_step, facts))
        for step, end_s in saves:
            events.append((end_s, "saved", step, {"took_us": round(job.save_s * 1e6)}))
        if last and at_s >= attempt.up_s:
            events.append((at_s, last, done, {}))
        self._write(job, attempt, events)
        self._count(job, attempt, at_s, saves, done)

    def _write(
        self, job: Job, attempt: Attempt, events: Iterable[tuple[float, str, int, dict[str, object]]]
    ) -> None:
        folder = self.folder(job)
        for number, (at_s, name, step, facts) in enumerate(events):
            if not number:
                assert job.allocation is not None
                node = job.allocation.nodes[0].name
                body = {
                    "format": FORMAT,
                    "at_us": us(at_s),
                    "launcher": f"slurm {job.number}",
                    "node": node,
                    "ranks": attempt.nodes * GPUS,
                    "restarts": attempt.number - 1,
                }
                key = folder.key(f"attempts/{attempt.number:06d}.json")
                self.store.put_if_absent(key, canonical(body))
            folder.put_event(attempt.number, number, name, step, facts, us(at_s))

    def _count(
        self, job: Job, attempt: Attempt, at_s: float, saves: list[tuple[int, float]], done: int
    ) -> None:
        """Add the attempt's time to the truth, and write its intervals."""
        self._add("starting", min(at_s, attempt.up_s) - attempt.begun_s, attempt)
        self._add("restoring", min(at_s, attempt.restored_s) - attempt.up_s, attempt)
        self._add("waiting for data", min(at_s, attempt.first_s) - attempt.restored_s, attempt)
        self._add("saving", len(saves) * job.save_s, attempt)
        in_steps_s = max(0.0, at_s - attempt.first_s - len(saves) * job.save_s)
        if in_steps_s:
            count = done - attempt.first_step
            again = max(0, min(done, self._done[job.run]) - attempt.first_step) / count if count else 0.0
            self._add("waiting for data", in_steps_s * job.wait_share, attempt)
            self._add("repeated steps", in_steps_s * (1 - job.wait_share) * again, attempt)
            self._add("new steps", in_steps_s * (1 - job.wait_share) * (1 - again), attempt)
            self._put_interval(job, attempt, at_s, len(saves))
        self._done[job.run] = max(self._done[job.run], done)

    def _put_interval(self, job: Job, attempt: Attempt, at_s: float, saves: int) -> None:
        """Write one interval, up to the last whole minute: ranks write each."""
        assert job.allocation is not None
        end_s = attempt.first_s + (at_s - attempt.first_s) // INTERVAL_S * INTERVAL_S
        _, end = attempt.progress(job.save_every, job.save_s, end_s)
        if end <= attempt.first_step:
            return
        row = np.zeros(1, ROW)
        row["node"] = job.allocation.nodes[0].name.encode()
        row["first_step"], row["end_step"] = attempt.first_step, end
        row["begun_us"], row["ended_us"] = us(attempt.first_s), us(end_s)
        row["step_s"] = end_s - attempt.first_s - saves * job.save_s
        row["wait_s"] = row["step_s"] * job.wait_share
        self.folder(job).put_interval(attempt.number, *interval_bytes(row.tobytes()))

    def gap(self, part: str, seconds: float, job: Job) -> None:
        """Add an allocation's time outside of attempts."""
        assert job.allocation is not None
        self.truth.parts[part] += max(0.0, seconds) * len(job.allocation.nodes)

    def _add(self, part: str, seconds: float, attempt: Attempt) -> None:
        self.truth.parts[part] += max(0.0, seconds) * attempt.nodes

    def allocation_ended(self, job: Job, allocation: Allocation) -> None:
        """Write the line of accounting."""
        assert allocation.ended_s is not None
        names = [node.name for node in allocation.nodes]
        gpus, least = f"gres/gpu={GPUS * len(names)}", f"gres/gpu={GPUS * job.least}"
        state = "CANCELLED by 1000" if allocation.state == "CANCELLED" else allocation.state
        values = {
            "JobID": str(job.number),
            "JobName": f"pk-000000000000-{job.run}",
            "User": ACCOUNTS[job.account],
            "Account": job.account,
            "QOS": PRIORITIES[job.priority],
            "Partition": "train",
            "State": state,
            "Submit": str(us(allocation.submitted_s) // 1_000_000),
            "Start": str(us(allocation.begun_s) // 1_000_000),
            "NNodes": str(len(names)),
            "NodeList": ",".join(names),
            "ReqTRES": f"cpu=1,{least}",
            "AllocTRES": f"cpu=1,{gpus}",
            "TimelimitRaw": "10080",
            "Reason": "None",
            "End": str(us(allocation.ended_s) // 1_000_000),
        }
        self.lines.append("|".join(values[name] for name in FIELDS))
        seconds = allocation.ended_s - allocation.begun_s
        self.truth.node_s += seconds * len(names)
        self.truth.gpu_s[job.dataset] += seconds * len(names) * GPUS
