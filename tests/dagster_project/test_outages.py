"""Everything that can die is killed in the middle of ingest and release: nothing is lost, nothing is there twice."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loader
from assets.watch.batches import Batch, Batches

pytestmark = pytest.mark.server
N_PHOTOS, N_BROKEN = 17, 3
GONE = ("SUCCESS", "FAILURE", "CANCELED")


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """Photos that are all different, and some that cannot be decoded, spread over the batches."""
    place, rng = tmp_path / "landing", np.random.default_rng(0)
    place.mkdir()
    for number in range(N_PHOTOS):
        sink = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)).save(sink, "JPEG")
        (place / f"{number:03d}.jpg").write_bytes(sink.getvalue())
    for number in range(N_BROKEN):
        (place / f"{number * 8:03d}-broken.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes([number]) * 40)
    return place


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path, shared: Any) -> Iterator[Any]:
    """None for SQLite, or a Postgres of the test's own."""
    if request.param == "sqlite":
        yield None
        return
    with shared("servers/postgres").postgres() as server:
        yield server


@pytest.fixture
def dagster(tmp_path: Path, landing: Path, database: Any, shared: Any) -> Iterator[Any]:
    environment = {"PENSTOCK_ROOT": str(tmp_path / "root"), "PENSTOCK_LANDING": str(landing)}
    definitions = Path(__file__).parents[1] / "servers" / "small_pipeline.py"
    url = database.url if database else ""
    with shared("servers/deployment").deployment(tmp_path / "dagster", definitions, environment, url) as made:
        yield made


def batches(tmp_path: Path) -> list[Batch]:
    with loader.Root(tmp_path / "root") as root:
        return Batches("small").look(root)


def test_kills_in_the_middle_lose_and_double_nothing(tmp_path: Path, dagster: Any, database: Any) -> None:
    n_batches = -(-(N_PHOTOS + N_BROKEN) // 4)
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
        lambda: [batch.standing for batch in batches(tmp_path)] == ["ready"] * n_batches,
    )
    dagster.wait_for("the pages answer", dagster.reconnects)
    first = dagster.launch("small_release")
    dagster.wait_for("the release was killed or is through", lambda: kill_or_over(dagster, first))
    dagster.kill("webserver")
    dagster.start("webserver")
    dagster.wait_for("every batch is published", lambda: released(tmp_path, dagster, n_batches))
    with loader.Root(tmp_path / "root") as root:
        version = root.open("small@latest")
        keys = version.samples().collect()["raw_sha256"].to_list()
        assert len(keys) == len(set(keys)) == N_PHOTOS
        assert len(root.versions("small")) == n_batches
    found = batches(tmp_path)
    assert sum(batch.objects for batch in found) == N_PHOTOS + N_BROKEN
    assert sum(batch.used for batch in found) == N_PHOTOS
    assert (
        sum(n for batch in found for (outcome, _), n in batch.refused.items() if outcome == "rejected")
        == N_BROKEN
    )
    asked = [run["tags"]["dagster/run_key"] for run in dagster.runs("small_ingest") if is_first(run)]
    assert sorted(asked) == sorted(
        batch.key for batch in found
    )  # one run each, and what followed are its retries
    dagster.wait_for("no run is left over", lambda: all(run["status"] in GONE for run in dagster.runs()))


def is_first(run: dict[str, Any]) -> bool:
    return not {"dagster/parent_run_id", "penstock/again_of"} & run["tags"].keys()


def kill_one(dagster: Any, job: str, not_these: frozenset[str] | set[str] = frozenset()) -> str:
    """The id of a run whose process was killed while it worked, "" when none is on just now."""
    for run in dagster.runs(job):
        if (
            run["status"] == "STARTED"
            and run["runId"] not in not_these
            and dagster.kill_a_worker(run["runId"])
        ):
            run_id: str = run["runId"]
            return run_id
    return ""


def kill_or_over(dagster: Any, run_id: str) -> bool:
    (run,) = [run for run in dagster.runs("small_release") if run["runId"] == run_id]
    return run["status"] in GONE or (run["status"] == "STARTED" and dagster.kill_a_worker(run_id))


def released(tmp_path: Path, dagster: Any, n_batches: int) -> bool:
    """Whether all are published; a release that is neither on nor tried again by itself is started once more."""
    if [batch.standing for batch in batches(tmp_path)] == ["published"] * n_batches:
        return True
    runs = dagster.runs("small_release")
    if all(run["status"] in GONE and run["tags"].get("dagster/will_retry") != "true" for run in runs):
        dagster.launch("small_release")
    return False
