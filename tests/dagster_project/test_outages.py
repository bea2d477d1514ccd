"""Everything that can die is killed in the middle of ingest and release: nothing is lost, nothing is there twice."""

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loader
from assets.arrivals.batches import IngestBatch, IngestBatches
from tests.servers.deployment import REPOSITORY, Deployment, deployment
from tests.servers.postgres import Postgres, postgres

pytestmark = pytest.mark.server
GONE = ("SUCCESS", "FAILURE", "CANCELED")


def land(place: Path, n_photos: int, n_broken: int) -> None:
    """Photos that are all different, and some that cannot be decoded, spread over the batches."""
    rng = np.random.default_rng(0)
    place.mkdir()
    for number in range(n_photos):
        sink = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)).save(sink, "JPEG")
        (place / f"{number:03d}.jpg").write_bytes(sink.getvalue())
    for number in range(n_broken):
        (place / f"{number * 8:03d}-broken.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes([number]) * 40)


def batches(folder: Path) -> list[IngestBatch]:
    with loader.Root(folder / "root") as root:
        return IngestBatches("small").current(root)


def test_kills_in_the_middle_lose_and_double_nothing(
    tmp_path: Path, at_scale: Callable[..., Sequence[Any]]
) -> None:
    """In CI with Postgres, which dies too; what SQLite is left with by a killed daemon is in test_backfills.py."""
    for name in at_scale(["postgres"], ["postgres", "sqlite"]):
        with ExitStack() as open_:
            database = open_.enter_context(postgres()) if name == "postgres" else None
            lose_and_double_nothing(tmp_path / name, database, *at_scale((6, 2), (17, 3)))


def lose_and_double_nothing(folder: Path, database: Postgres | None, n_photos: int, n_broken: int) -> None:
    n_batches = -(-(n_photos + n_broken) // 4)
    folder.mkdir()
    land(folder / "landing", n_photos, n_broken)
    environment = {"PENSTOCK_ROOT": str(folder / "root"), "PENSTOCK_LANDING": str(folder / "landing")}
    definitions = REPOSITORY / "tests" / "servers" / "small_pipeline.py"
    url = database.url if database else ""
    with deployment(folder / "dagster", definitions, environment, url) as dagster:
        dagster.switch_on("small_discovery")
        killed = dagster.wait_for(
            "a run is on and its process was killed", lambda: kill_one(dagster, "small_ingest")
        )
        dagster.kill("daemon")
        dagster.start("daemon")
        dagster.wait_for(
            "a second process was killed", lambda: kill_one(dagster, "small_ingest", not_these={killed})
        )
        dagster.kill("code-server")
        dagster.start("code-server")
        if database is not None:
            database.kill()
            database.start()
        dagster.wait_for(
            "every batch is cut",
            lambda: [batch.standing for batch in batches(folder)] == ["ready"] * n_batches,
        )
        dagster.wait_for("the pages answer", dagster.reconnects)
        first = dagster.launch("small_release")
        dagster.wait_for("the release was killed or is through", lambda: kill_or_finish(dagster, first))
        dagster.kill("webserver")
        dagster.start("webserver")
        dagster.wait_for("every batch is published", lambda: has_published(folder, dagster, n_batches))
        with loader.Root(folder / "root") as root:
            version = root.open("small@latest")
            keys = version.samples().collect()["raw_sha256"].to_list()
            assert len(keys) == len(set(keys)) == n_photos
            assert len(root.versions("small")) == n_batches
        found = batches(folder)
        assert sum(batch.objects for batch in found) == n_photos + n_broken
        assert sum(batch.used for batch in found) == n_photos
        refused = [(outcome, n) for batch in found for (outcome, _), n in batch.refused.items()]
        assert sum(n for outcome, n in refused if outcome == "rejected") == n_broken
        asked = [run["tags"]["dagster/run_key"] for run in dagster.runs("small_ingest") if is_first(run)]
        # one run each, and what followed are its retries
        assert sorted(asked) == sorted(batch.key for batch in found)
        dagster.wait_for("no run is left over", lambda: all(run["status"] in GONE for run in dagster.runs()))


def is_first(run: dict[str, Any]) -> bool:
    return not {"dagster/parent_run_id", "penstock/again_of"} & run["tags"].keys()


def kill_one(dagster: Deployment, job: str, not_these: frozenset[str] | set[str] = frozenset()) -> str:
    """The id of a run whose process was killed while it worked, "" when none is on just now."""
    for run in dagster.runs(job):
        if (
            run["status"] == "STARTED"
            and run["runId"] not in not_these
            and dagster.kill_a_worker(run["runId"])
        ):
            return str(run["runId"])
    return ""


def kill_or_finish(dagster: Deployment, run_id: str) -> bool:
    (run,) = [run for run in dagster.runs("small_release") if run["runId"] == run_id]
    return run["status"] in GONE or (run["status"] == "STARTED" and dagster.kill_a_worker(run_id))


def has_published(folder: Path, dagster: Deployment, n_batches: int) -> bool:
    """Whether all are published; a release that is neither on nor tried again by itself is started once more."""
    if [batch.standing for batch in batches(folder)] == ["published"] * n_batches:
        return True
    runs = dagster.runs("small_release")
    if all(run["status"] in GONE and run["tags"].get("dagster/will_retry") != "true" for run in runs):
        dagster.launch("small_release")
    return False
