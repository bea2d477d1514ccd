"""Cost of datasets for metrics: as `penstock usage --by dataset`, by records only, read once an hour."""

import logging

import loader
from loader.dataset.log.entries import DAMAGED
from loader.errors import PenstockError
from loader.storage.mirror import primary_store

from ..train.goodput.run_usage import record_starts
from ..units import DAY_US
from ..usage.cost import CostRow, group_costs
from ..usage.prices import PriceTable
from ..usage.stored import stored_bytes

_log = logging.getLogger("penstock.metrics")
EVERY_S = 3600.0
"""Seconds between two readings: each reads the manifests of all versions, and the records of all runs."""
SINCE_US = 90 * DAY_US
"""Trainings of this time count, as `penstock usage` counts them without --since."""


class CostReader:
    """Cost of a root's datasets. prices: None exports no prices."""

    def __init__(self, root: loader.Root, prices: PriceTable | None) -> None:
        self.prices = prices
        self.rows: list[CostRow] = []
        self._root = root
        self._read_s = 0.0  # Unix time of the newest reading
        self._problems: list[str] = []  # of the newest reading

    def read(self, now_s: float) -> list[str]:
        """Read the cost, unless that was less than an hour ago; return the problems of the newest reading."""
        if now_s - self._read_s < EVERY_S:
            return self._problems
        # Set before: a root that cannot be read is not tried in each scrape.
        self._read_s = now_s
        try:
            self._problems = self.read_rows(now_s)
        except (PenstockError, *DAMAGED) as error:
            self._problems = [str(error)]
        for problem in self._problems:
            _log.warning("cost: %s", problem)
        return self._problems

    def read_rows(self, now_s: float) -> list[str]:
        """Set `rows`; return the problems of runs. Raises: PenstockError."""
        until_us = round(now_s * 1e6)
        stored = stored_bytes(self._root.store, self._root.state)
        # Mirrors have no records of runs.
        recorded = record_starts(primary_store(self._root.store), ())
        self.rows = group_costs(
            "dataset",
            stored,
            recorded.starts,
            until_us - SINCE_US,
            until_us,
        )
        return list(recorded.problems)
