"""Batches before the gate of a version, and what came of them."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

import loader
from assets.arrivals.make_batches import discover
from assets.checks import Expectation
from assets.gate_settings import Gate
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.stages import StageRecord, current_record

WRONG = Expectation(kind="in_set", column="sample_rate_hz", values=(44100,), where=("kind", "audio"))
Release = Callable[[Gate], dg.ExecuteInProcessResult]


def cut(root: loader.Root, place: Path, max_reject_rate: float = 0.0) -> str:
    """Discover, land and cut; the batch's key."""
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    cut_again(root, place, batch, max_reject_rate)
    return batch


def cut_again(root: loader.Root, place: Path, batch: str, max_reject_rate: float) -> None:
    store, compute = open_store(str(place)), InlineCompute()
    spec = DatasetSpec(name="demo", max_reject_rate=max_reject_rate)
    media_stage(root, store, compute, spec, partition=batch, run_id="r")
    units_stage(root, store, compute, spec, partition=batch, run_id="r")
    samples_stage(root, spec, partition=batch, run_id="r")


def samples_record(root: loader.Root, batch: str) -> StageRecord:
    found = current_record(root.store, "demo", "samples", batch)
    assert found is not None
    return found


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    return (data.description if data else None) or str(failed.step_failure_data.error)


def numbers(root: loader.Root) -> list[int]:
    return [record.number for record in root.state.versions("demo")]


def version_record(root: loader.Root, batch: str) -> StageRecord:
    found = current_record(root.store, "demo", "version", batch)
    assert found is not None
    return found
