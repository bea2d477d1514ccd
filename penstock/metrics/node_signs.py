"""Suspect nodes for metrics: by the rules of `penstock node suspects`, from what a scrape has read.

Differences of replays are left out: they need two run logs.
"""

from collections.abc import Sequence

from loader.errors import Corrupt
from loader.storage import Store

from ..nodes.cases import CaseBook, settlement_us
from ..nodes.node_check import CHECKS
from ..nodes.recent_keys import TimedFolder
from ..nodes.signs import parse_failed_check
from ..nodes.suspects import (
    RECENT_US,
    Attempt,
    FailedCheck,
    NodeFault,
    NodeInterval,
    NodeSigns,
    is_node,
    suspects,
)
from .record_facts import RecordFacts


class NodeSignReader:
    """Failed checks of nodes, and when signs were settled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = TimedFolder(store, CHECKS)
        self._cases = CaseBook(store)
        self._settled_us: dict[str, int] = {}
        self._checks: dict[str, FailedCheck] = {}  # a node's newest

    def read_checks(self, now_us: int) -> None:
        """Read new failed checks. Raises: StoreError; Corrupt, after all of them."""
        problem: Corrupt | None = None
        for info in self._folder.new(now_us):
            try:
                check = parse_failed_check(self._store, info, now_us)
            except Corrupt as error:
                problem = error
                continue
            if not is_node(check.node):
                continue
            known = self._checks.get(check.node)
            if known is None or known.at_us < check.at_us:
                self._checks[check.node] = check
        # Older ones no longer count as signs.
        since_us = now_us - RECENT_US
        checks = self._checks.items()
        self._checks = {node: check for node, check in checks if check.at_us > since_us}
        if problem is not None:
            raise problem

    def read_cases(self) -> None:
        """Read new cases against nodes. Raises: StoreError."""
        self._settled_us = settlement_us(self._cases.read())

    def suspects(self, records: Sequence[RecordFacts], now_us: int) -> dict[str, list[str]]:
        """Return node -> figures of each sign against it."""
        faults = list[NodeFault]()
        intervals = list[NodeInterval]()
        starts = list[Attempt]()
        for record in records:
            faults.extend(record.faults)
            intervals.extend(record.recent_intervals(now_us))
            starts.extend(record.ended_starts())
        signs = NodeSigns(
            faults=faults,
            intervals=intervals,
            attempts=starts,
            checks=[*self._checks.values()],
        )
        by_node: dict[str, list[str]] = {}
        for suspect in suspects(signs, now_us, self._settled_us):
            texts = by_node.setdefault(suspect.node, [])
            texts.append(suspect.text)
        return by_node
