"""Decisions of online runs, as an open viewer reads them."""

from functools import partial

from loader.rollouts.record import RunRecords
from loader.storage.mirror import primary_store

from .open_data import OpenData
from .replays.training import Training
from .rollouts.decisions import (
    DecisionChart,
    DecisionDetail,
    DecisionRow,
    decision_chart,
    decision_detail,
    is_online,
    read_row,
)


def run_decisions(opened: OpenData, training: Training) -> DecisionChart | None:
    """Return a run's decisions. None, without a request, for a run that is not online."""
    if not is_online(training):
        return None
    return open_decisions(opened, training.name)


def open_decisions(opened: OpenData, run: str) -> DecisionChart:
    """Return a run's decisions. Raises: NotRecorded; StoreError."""
    store = primary_store(opened.root.store)
    read = partial(_read, opened)
    return opened.ask_primary(lambda: decision_chart(store, run, read))


def open_decision(opened: OpenData, run: str, step: int) -> DecisionDetail:
    """Return a step's decision. Raises: NotRecorded; Corrupt; StoreError."""
    store = primary_store(opened.root.store)
    return opened.ask_primary(lambda: decision_detail(store, run, step))


def _read(opened: OpenData, records: RunRecords, step: int) -> DecisionRow | None:
    """Return a decision's counts. A stored record never changes, so they are kept."""
    row: DecisionRow | None = opened.media.get(
        ("decision", records.run, step),
        lambda: read_row(records, step),
        lambda known: known is not None,
    )
    return row
