"""The watch of the nodes: signs that trainings would leave, judged by `suspects` and `caps`, and who was drained."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from penstock.nodes.caps import Drain, caps
from penstock.nodes.proof import NodeProof, ProofQueue
from penstock.nodes.suspects import (
    RECENT_US,
    Attempt,
    FailedCheck,
    NodeFault,
    NodeInterval,
    NodeSigns,
    Suspect,
    suspects,
)

from .jobs import DAY_S, GPUS, HOUR_S, Job, Node, us

READ_S, SLOW_TIMES = 0.02, 3.0
"""Median latency of a read; a slow node's, in times of it."""
READS_PER_LOOK, FLIPS = 5000, 1 / 1000
"""Reads of a node between two looks; share that a bad node flips."""
PROOF_READS = 2000
PROOFS_PER_LOOK = 20
"""Proofs between two looks: a minute each."""
CHECK_FINDS = 0.25
"""Share of the checks on a node that crashes which find it."""
ATTEMPTS_US = 14 * 86_400_000_000
"""Ended attempts that count, as `read_signs` chooses them."""
REPAIR_US = 24 * 3_600_000_000
"""From a drain to the node's return."""
CHECK_HOURS = 6.0
"""Hours for which a check fails on every node, until a person repairs it."""


class Watch:
    """Signs of recent time, and drains."""

    def __init__(self, nodes: Sequence[Node], draw: random.Random, days: float) -> None:
        self._nodes, self._random = {node.name: node for node in nodes}, draw
        self.check_from_s = days * 5 / 7 * DAY_S
        self.store_slow_s = (days * 2 / 7 * DAY_S, days * 2 / 7 * DAY_S + 2 * HOUR_S)
        """The store is slow for everybody meanwhile."""
        self.damaged_s = days * 3 / 7 * DAY_S
        """A shard is damaged in the store from then on, until a person repairs it after six hours."""
        self.attempts: list[Attempt] = []
        self.drains: list[Drain] = []
        self.signs: dict[str, str] = {}
        """Drained node -> sign."""
        self.named: dict[str, float] = {}
        """Suspect of another sign than a check -> time of the first one."""
        self.by_check: set[str] = set()
        """Suspects of the broken check."""
        self.alerts: list[tuple[float, str]] = []
        self._faults: deque[NodeFault] = deque()
        self._intervals: deque[NodeInterval] = deque()
        self._checks: deque[FailedCheck] = deque()
        self._settled: dict[str, int] = {}
        self._proofs = ProofQueue()
        self.n_proofs = 0
        self._number = 0

    def look(self, now_s: float, running: Sequence[Job]) -> None:
        """Gather the signs since the last look, decide, and drain."""
        now_us = us(now_s)
        self._gather(now_s, running)
        for queue in (self._faults, self._checks):
            while queue and queue[0].at_us < now_us - RECENT_US:
                queue.popleft()
        while self._intervals and self._intervals[0].ended_us < now_us - RECENT_US:
            self._intervals.popleft()
        self.attempts = [one for one in self.attempts if one.ended_us > now_us - ATTEMPTS_US]
        signs = NodeSigns(
            faults=list(self._faults),
            intervals=list(self._intervals),
            attempts=self.attempts,
            checks=list(self._checks),
        )
        named = [
            one for one in suspects(signs, now_us, self._settled) if not self._nodes[one.node].is_drained
        ]
        for suspect in named:
            if suspect.sign == "check":
                self.by_check.add(suspect.node)
            else:
                self.named.setdefault(suspect.node, now_s)
        for suspect in self._proofs.due(named, now_us, PROOFS_PER_LOOK):
            is_bad = self._is_proved(suspect, now_s)
            is_slowness = is_bad and suspect.sign == "slow reads"
            proof = NodeProof(is_bad=is_bad, text="", is_slowness=is_slowness)
            self._proofs.add(suspect, proof, now_us)
            self.n_proofs += 1
        alerts_us = [us(at_s) for at_s, _ in self.alerts]
        proved, n_suspects = self._proofs.proved, len(self._proofs.open_suspects(named))
        decision = caps(proved, self.drains, len(self._nodes), now_us, alerts_us, n_suspects)
        for name in decision.drain:
            self._drain(name, proved[name][0].sign, now_us)
        if decision.alert:
            self.alerts.append((now_s, decision.alert))
        self._return_repaired(now_s)

    def _drain(self, name: str, sign: str, now_us: int) -> None:
        self._nodes[name].is_drained = True
        self.drains.append(Drain(node=name, drained_us=now_us))
        self.signs[name] = sign
        self._settled[name] = now_us

    def _return_repaired(self, now_s: float) -> None:
        """Return nodes that a person repaired; once the broken check is repaired, also the nodes it drained."""
        now_us = us(now_s)
        for place, drain in enumerate(self.drains):
            check_is_broken = (
                self.signs[drain.node] == "check" and now_s < self.check_from_s + CHECK_HOURS * HOUR_S
            )
            if drain.returned_us is None and now_us > drain.drained_us + REPAIR_US and not check_is_broken:
                node = self._nodes[drain.node]
                node.is_drained, node.lemon = False, ""
                self.drains[place] = replace(drain, returned_us=now_us)
                self._settled[drain.node] = now_us

    def _is_proved(self, suspect: Suspect, now_s: float) -> bool:
        """Play `NodeProver.prove`: the same ranges, read there and elsewhere, else the checks of the cluster."""
        lemon = self._nodes[suspect.node].lemon
        if self._is_check_broken(now_s):
            return True
        if suspect.sign == "slow reads":
            return lemon == "slow"
        if suspect.faults and not any(fault.address.startswith("damaged") for fault in suspect.faults):
            flips = FLIPS if lemon == "flip" else 0.0
            return any(self._random.random() < flips for _ in range(PROOF_READS))
        return lemon == "crash" and self._random.random() < CHECK_FINDS

    def _is_check_broken(self, now_s: float) -> bool:
        return self.check_from_s <= now_s < self.check_from_s + CHECK_HOURS * HOUR_S

    def _gather(self, now_s: float, running: Sequence[Job]) -> None:
        now_us, draw = us(now_s), self._random
        slow = 5.0 if self.store_slow_s[0] <= now_s < self.store_slow_s[1] else 1.0
        is_damaged = self.damaged_s <= now_s < self.damaged_s + CHECK_HOURS * HOUR_S
        faults: list[NodeFault] = []
        for job in running:
            attempt, allocation = job.attempt, job.allocation
            if attempt is None or allocation is None or attempt.first_s >= now_s:
                continue
            _, step = attempt.progress(job.save_every, job.save_s, now_s)
            for node in allocation.nodes:
                own = slow * (SLOW_TIMES if node.lemon == "slow" else 1.0)
                self._intervals.append(
                    NodeInterval(
                        run=job.run,
                        attempt=attempt.number,
                        end_step=step,
                        node=node.name,
                        ended_us=now_us,
                        slow_read_s=READ_S * own * draw.lognormvariate(0, 0.15),
                    )
                )
                if node.lemon == "flip":
                    count = sum(draw.random() < FLIPS for _ in range(READS_PER_LOOK))
                    faults += [
                        self._fault(node, now_us, f"data/{draw.getrandbits(40):x}.tar") for _ in range(count)
                    ]
                if is_damaged and draw.random() < 4 * GPUS / 1000:
                    # A rank meets the damaged shard: several samples of it, which no other node need have read.
                    shard = f"damaged/{draw.randrange(3)}.tar"
                    faults += [self._fault(node, now_us, shard) for _ in range(draw.randint(1, 5))]
        self._faults.extend(sorted(faults, key=lambda fault: fault.at_us))
        if self._is_check_broken(now_s):
            self._checks.extend(
                FailedCheck(node=name, at_us=now_us, check="gpu_memory", text="no such driver")
                for name, node in self._nodes.items()
                if not node.is_drained
            )

    def _fault(self, node: Node, now_us: int, address: str) -> NodeFault:
        self._number += 1
        begin = 512 * self._random.randrange(1000)
        at_us = now_us - self._random.randrange(900_000_000)
        return NodeFault(node=node.name, at_us=at_us, address=address, begin=begin, end=begin + 4096)
