"""A dataset that streams, with a real daemon and webserver: what lands becomes versions by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

import loader
from assets.release.lag import lags
from benchmarks.arrival import DATASET, Measured, measure, section

DEFINITIONS = """
from assets.gate_settings import Gate
from assets.sources import BatchLimits
from assets.spec import DatasetSpec
from dagster_project.definitions import build_defs
from resources.compute import ComputeResource

SPEC = DatasetSpec(
    name="stream", streaming=True, batch=BatchLimits(max_wait_s=0), max_reject_rate=1.0, gate=Gate(suite=())
)
defs = build_defs({"compute": ComputeResource(engine="inline")}, [SPEC])
"""
"""As the benchmark's, without Great Expectations and worker processes: their imports take seconds of each run."""


@pytest.mark.server
def test_what_lands_becomes_trainable_by_itself(tmp_path: Path, at_scale: Callable[..., int]) -> None:
    n_photos = at_scale(1, 2)
    found = measure(tmp_path / "stream", n_photos, definitions=DEFINITIONS, settings={})
    assert len(found.arrival_s) == n_photos
    with loader.Root(tmp_path / "stream" / "root") as root:
        told = lags(root, DATASET)
        assert [one.version for one in told] == ["stream@1", "stream@2"][:n_photos]
        assert [one.n for one in told] == [1] * n_photos
        # the lag of the manifest is that which was seen from outside, but for the poll and the file's own time
        for one, seen_s in zip(told, found.arrival_s, strict=True):
            assert one.max_s <= seen_s + 1
        assert len(root.open("stream@latest").samples().collect()["raw_key"].unique()) == n_photos


def test_section_says_how_long_photos_took() -> None:
    text = section(Measured(arrival_s=(50.0, 20.0, 30.0), cpu_s=90.0), "quiet")
    assert "has it: 25 s, median of 2 (20 to 30 s); the first, while Dagster starts, 50 s." in text
    assert "quiet" in text
    assert text.endswith("and 30 s of processor time.")
