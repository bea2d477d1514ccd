"""Prove a suspicion: the node reads other bytes than a version has, or a check fails there.

A record only names ranges. They are read from roots that the operator names, bounded in number and size, and must come
here as a published version has them.
"""

import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import loader
from loader.dataset.log.entries import DAMAGED
from loader.errors import InvalidCluster, NotARoot, StoreError
from loader.json_text import parse_json_object
from loader.storage.store import key_fault

from ..checkpoints.ranks import map_in_order
from ..compute.cluster import Cluster, NodeCheck
from . import range_reads, slow_reads, store_check
from .node_check import CheckStatus, NodeCheckResult, run_check, run_limited, worst
from .range_reads import ObjectRange, RangeReads, request_text
from .store_check import random_fields
from .suspects import MINUTE_US, SLOW_READS, NodeFault, Suspect, is_node
from .version_ranges import version_crcs

READS = 2_000
READ_S = 20.0
"""Reads of a proof, and their longest time on the node."""
START_S = 30.0
"""Seconds for a command to begin on a node."""
RANGES = 64
RANGE_BYTES = 2**22
ANSWER_BYTES = 2**20
PROOFS = 4
"""Most proofs in a review."""
PROVE_AGAIN_US = 10 * MINUTE_US
"""Time until a suspect without a newer sign is proved again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProof:
    """Outcome of the comparison."""

    is_bad: bool
    """True if the node differs from this one, or a check fails there."""
    text: str
    """Figures, such as "4 wrong of 1,912 reads", or why nothing is proved."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the record."""
    is_tested: bool = True
    """False if nothing could be compared: the suspicion is neither confirmed nor refuted."""
    is_testable: bool = True
    """False if no version has the ranges any more, as after a takedown: a later comparison finds none either."""
    is_slowness: bool = False
    """True if it is bad by its times. A busy minute could explain them: one more sign has to confirm it."""


class NodeProver:
    """Proves by commands on nodes. roots: URLs or paths whose ranges may be read; the first one holds the record."""

    def __init__(self, cluster: Cluster, roots: Sequence[str]) -> None:
        self._cluster = cluster
        self._roots = {root.url: root for root in (loader.Root(url) for url in dict.fromkeys(roots))}

    def prove(self, suspect: Suspect) -> NodeProof:
        """Return whether the suspect is bad."""
        if suspect.sign == SLOW_READS:
            reads = self._compare_times(suspect.node, suspect.others)
        else:
            reads = self._compare(suspect.node, suspect.faults)
        if reads.is_bad:
            return reads
        results = self.check(suspect.node)
        checked = {"checks": [one.to_json() for one in results], **reads.evidence}
        failed = next((one for one in results if one.status is CheckStatus.FAILED), None)
        if failed is not None:
            return NodeProof(is_bad=True, text=f"{failed.check} failed: {failed.text}", evidence=checked)
        words = "; ".join([reads.text, *(f"{one.check}: {one.text}" for one in results)])
        is_tested = reads.is_tested
        # A slow node is refuted by its times. Elsewhere the check that failed before may be unknown now.
        if suspect.sign != SLOW_READS and worst(results) is CheckStatus.UNKNOWN:
            is_tested = False
        return NodeProof(is_bad=False, text=words, evidence=checked, is_tested=is_tested)

    def is_clean(self, node: str, faults: Sequence[NodeFault], healthy: Sequence[str] | None = None) -> bool:
        """Return whether a node reads the ranges correctly and its checks pass, warnings included.

        A node that did not read them is not clean. If no version has them any more, its checks decide.

        healthy: Nodes to compare its times with, if it was drained because it was slow.
        """
        reads = self._compare(node, faults)
        if reads.is_bad or (reads.is_testable and not reads.is_tested):
            return False
        if healthy is not None:
            times = self._compare_times(node, healthy)
            if times.is_bad or not times.is_tested:
                return False
        return worst(self.check(node)) in (CheckStatus.OK, CheckStatus.WARNING)

    def check(self, node: str) -> list[NodeCheckResult]:
        """Run the cluster's checks, and ours, on a node."""
        return [
            run_check(
                name, NodeCheck(command=tuple(self._on_node(node, check.command)), limit_s=check.limit_s)
            )
            for name, check in cluster_checks(self._cluster, next(iter(self._roots), None)).items()
        ]

    def _compare(self, node: str, faults: Sequence[NodeFault]) -> NodeProof:
        """Return the proof of the first root whose bytes differ on the node, else of one without an answer."""
        proofs = [NodeProof(is_bad=False, text="no range of a root given to read")]
        for url, root in self._roots.items():
            ranges: dict[ObjectRange, None] = {}
            for fault in faults:
                if fault.store != url or fault.kind != "read" or not fault.is_valid:
                    continue
                # A record may name any range: not more than these bytes, nor a key outside the root, are read for it.
                if fault.end - fault.begin > RANGE_BYTES or key_fault(fault.address):
                    continue
                ranges[ObjectRange(fault.address, fault.begin, fault.end)] = None
            if ranges:
                proofs.append(self._compare_bytes(root, node, list(ranges)[-RANGES:]))
                if proofs[-1].is_bad:
                    return proofs[-1]
        # A root that was not compared may be the one whose bytes differ. One that can be compared later leads.
        untested = [proof for proof in proofs if not proof.is_tested]
        untested.sort(key=lambda proof: not proof.is_testable)
        return next(iter(untested), proofs[-1])

    def _compare_bytes(self, root: loader.Root, node: str, ranges: Sequence[ObjectRange]) -> NodeProof:
        """Compare the CRC-32C of ranges that a node reads again and again with a version's."""
        # A range that is wrong here too is not a fault of the node.
        try:
            right = version_crcs(root, ranges)
        except StoreError as error:
            text = f"the ranges cannot be read here: {error}"
            return NodeProof(is_bad=False, text=text, is_tested=False)
        if not right:
            text = f"none of {len(ranges)} ranges comes here as its version has it"
            return NodeProof(is_bad=False, text=text, is_tested=False, is_testable=False)
        there = self._read_there(root.url, node, [*right])
        if isinstance(there, str):
            return NodeProof(is_bad=False, text=there, is_tested=False)
        if not there.reads:
            text = f"{node} read none of {len(right)} ranges: {there.error or 'no time was left'}"
            return NodeProof(is_bad=False, text=text, is_tested=False)
        wrong = 0
        for crc, crcs in zip(right.values(), there.crcs, strict=True):
            for other, n_reads in crcs.items():
                if other != crc:
                    wrong += n_reads
        compared = [
            {"address": one.address, "begin": one.begin, "end": one.end, "here": crc, "there": dict(crcs)}
            for (one, crc), crcs in zip(right.items(), there.crcs, strict=True)
        ]
        facts = {
            "store": root.url,
            "reads": there.reads,
            "wrong": wrong,
            "failed": there.failed,
            "ranges": compared,
        }
        text = f"{wrong} wrong of {there.reads:,} reads"
        return NodeProof(is_bad=wrong > 0, text=text, evidence={"proof": facts})

    def _compare_times(self, node: str, healthy: Sequence[str]) -> NodeProof:
        """Compare the times of reads on a node with those on healthy ones, in each root that has ranges."""
        proof = NodeProof(is_bad=False, text="no range of a root to measure", is_tested=False)
        if not healthy:
            return replace(proof, text="no healthy node to compare it with")
        for root in self._roots.values():
            try:
                fields = random_fields(root, slow_reads.ROUNDS * slow_reads.RANGES)
            except NotARoot:
                continue
            ranges = [ObjectRange(one.path, one.offset, one.offset + one.nbytes) for one in fields]
            if ranges:
                measured = self._compare_times_in(root.url, node, healthy[: slow_reads.HEALTHY_NODES], ranges)
                if measured.is_bad:
                    return measured
                if measured.is_tested or not proof.is_tested:
                    proof = measured
        return proof

    def _compare_times_in(
        self, url: str, node: str, healthy: Sequence[str], ranges: Sequence[ObjectRange]
    ) -> NodeProof:
        """Compare the times of reads of one root. ranges: of all rounds."""
        nodes = [node, *healthy]
        times: dict[str, list[slow_reads.Times]] = {name: [] for name in nodes}
        for first in range(slow_reads.ROUNDS):
            # Other ranges in each round, since a cache of the node has the ranges of the last one.
            own = ranges[first :: slow_reads.ROUNDS]

            def read(name: str, own: Sequence[ObjectRange] = own) -> RangeReads | str:
                return self._read_there(url, name, own, reads=len(own), at_once=1)

            answers = map_in_order(read, nodes, at_once=len(nodes))  # at once: the store is as fast for each
            for name, answer in zip(nodes, answers, strict=True):
                if isinstance(answer, str):
                    return NodeProof(is_bad=False, text=answer, is_tested=False)
                is_late = name == node and not answer.failed  # the ranges that it did not come to took longer
                times[name].append([READ_S if one is None and is_late else one for one in answer.first_s])
        measured = slow_reads.slowness(times[node], {name: times[name] for name in healthy})
        if not measured.is_measured:
            return NodeProof(is_bad=False, text="too few reads to compare their times", is_tested=False)
        names = " and ".join(healthy)
        text = f"reads take {measured.read_s * 1e3:.0f} ms, on {names} {measured.healthy_s * 1e3:.0f} ms"
        facts = {
            "store": url,
            "ranges": len(ranges),
            "healthy": [*healthy],
            "read_us": round(measured.read_s * 1e6),
            "healthy_us": round(measured.healthy_s * 1e6),
        }
        return NodeProof(
            is_bad=measured.is_slow, text=text, evidence={"slowness": facts}, is_slowness=measured.is_slow
        )

    def _read_there(
        self,
        url: str,
        node: str,
        ranges: Sequence[ObjectRange],
        reads: int = READS,
        at_once: int = range_reads.AT_ONCE,
    ) -> RangeReads | str:
        """Return the reads of a node, or why there are none. reads: how many, over all ranges in turn."""
        words = [self._cluster.node_python(sys.executable), "-m", range_reads.__name__]
        request = request_text(url, ranges, reads, READ_S, at_once)
        try:
            data, code = run_limited(self._on_node(node, words), READ_S + START_S, request, ANSWER_BYTES)
            # The last line is the answer: a node's login may print lines before it.
            lines = data.decode(errors="replace").strip().splitlines()
            if code != 0 or not lines:
                return f"{node} did not read: exit code {code}, {lines[-1][:200] if lines else 'no output'}"
            there = RangeReads.from_json(parse_json_object(lines[-1]))
            if not len(there.crcs) == len(there.first_s) == len(ranges):
                return f"{node} read other ranges"
        except (OSError, *DAMAGED) as error:
            return f"{node} did not read: {error}"
        return there

    def _on_node(self, node: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` on a node. Raises: InvalidCluster."""
        prefix = self._cluster.train.on_node
        if not prefix:
            raise InvalidCluster(
                'train.on_node is missing in the cluster\'s file: how to run a command on a node, such as ["ssh", '
                '"{node}", "{command}"]',
                what="train.on_node",
            )
        if not is_node(node):
            raise InvalidCluster(
                f"{node!r} is not a name of a node", what="node", given=node, accepted="the name of a node"
            )
        named = [word.replace("{node}", node) for word in prefix]
        if "{command}" in prefix:  # for ssh, which gives a shell one text
            return [shlex.join(words) if word == "{command}" else word for word in named]
        return [*named, *words]


def cluster_checks(cluster: Cluster, root: str | None) -> dict[str, NodeCheck]:
    """Return the cluster's checks, and the store check of a root unless the file names a check "store"."""
    checks = dict(cluster.train.checks)
    if root is not None:
        command = (cluster.node_python(sys.executable), "-m", store_check.__name__, "--root", root)
        checks.setdefault("store", NodeCheck(command=command))
    return checks


def case_evidence(suspect: Suspect, proof: NodeProof) -> dict[str, Any]:
    """Return what the record keeps of a case."""
    faults = [asdict(fault) for fault in suspect.faults[-1000:]]
    return {"sign": suspect.sign, "suspicion": suspect.text, "faults": faults, **proof.evidence}


class ProofQueue:
    """Suspects and their proofs.

    Half of the proofs go to the suspects that most runs accuse. The others go to suspects without a proof, then to the
    one with the oldest proof: a check may find a bad node in one of several tries.
    """

    def __init__(self) -> None:
        self.proved: dict[str, tuple[Suspect, NodeProof]] = {}
        """Node -> the suspicion that its last proof confirmed."""
        self.unconfirmed: set[str] = set()
        """Nodes that one measurement found slow: intervals of another run, or a second measurement, confirm it."""
        # (node, kind of sign) -> (time of the newest sign, time of the proof)
        self._tried: dict[tuple[str, str], tuple[int, int]] = {}

    def due(self, suspects: Sequence[Suspect], now_us: int, most: int = PROOFS) -> list[Suspect]:
        """Return the suspects to prove now. Proofs of nodes that are no longer suspects are dropped."""
        nodes = {suspect.node for suspect in suspects}
        self.proved = {node: pair for node, pair in self.proved.items() if node in nodes}
        self.unconfirmed &= {suspect.node for suspect in suspects if suspect.sign == SLOW_READS}
        waiting = [suspect for suspect in suspects if now_us >= self._next_us(suspect)]
        by_age = sorted(waiting, key=lambda suspect: self._proof_us(suspect))
        # Stable: of equally accused suspects the one with the oldest proof leads.
        accused = sorted(
            (suspect for suspect in by_age if suspect.runs > 1), key=lambda suspect: -suspect.runs
        )
        # Half at most, else a forged accusation of many nodes would keep the others waiting.
        first = accused[: most // 2]
        return [*first, *(suspect for suspect in by_age if suspect not in first)][:most]

    def add(self, suspect: Suspect, proof: NodeProof, now_us: int) -> None:
        """Note a proof. A later one refutes an earlier one of the same sign."""
        node = suspect.node
        self._tried[node, suspect.sign] = suspect.at_us, now_us
        # One slow measurement may be a neighbour's copy on the same network. Another one, or another run, confirms it.
        needs_confirmation = proof.is_slowness and suspect.runs < 2
        is_first = node not in self.unconfirmed
        if needs_confirmation and is_first:
            self.unconfirmed.add(node)
            return
        # From here on, a measurement confirms that a node is slow, or refutes it.
        if suspect.sign == SLOW_READS and proof.is_tested:
            self.unconfirmed.discard(node)
        if proof.is_bad:
            self.proved[node] = suspect, proof
            return
        if proof.is_tested and node in self.proved:
            proved_suspect, _ = self.proved[node]
            if proved_suspect.sign == suspect.sign:
                del self.proved[node]

    def open_suspects(self, suspects: Collection[Suspect]) -> set[str]:
        """Return the nodes that count as suspects when `caps` looks for a common cause: many at once have one.

        These are proved bad, or one measurement found them slow, or their suspicion has had no proof yet. A suspicion
        whose proof tested nothing does not count.
        """
        untried = {one.node for one in suspects if (one.node, one.sign) not in self._tried}
        return untried | self.unconfirmed | self.proved.keys()

    def _proof_us(self, suspect: Suspect) -> int:
        _, proof_us = self._tried.get((suspect.node, suspect.sign), (0, 0))
        return proof_us

    def _next_us(self, suspect: Suspect) -> int:
        sign_us, proof_us = self._tried.get((suspect.node, suspect.sign), (0, -PROVE_AGAIN_US))
        # A slow node has a new sign each minute, and its measurement burdens two other nodes.
        is_new = suspect.at_us > sign_us and suspect.node not in self.proved and suspect.sign != SLOW_READS
        return 0 if is_new else proof_us + PROVE_AGAIN_US
