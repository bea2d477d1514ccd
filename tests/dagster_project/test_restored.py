"""Dagster's home or database is lost, and restored from a backup as the page says, or not at all: the root has all."""

import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import loader
from assets.arrivals.batches import IngestBatches
from penstock.stages import current_records
from tests.servers.deployment import REPOSITORY, RUNS_IN_THE_DAEMON, Deployment, deployment
from tests.servers.postgres import Postgres, postgres

pytestmark = pytest.mark.server
BLOCKS = dict(
    re.findall(r"```bash (\S+)\n(.*?)```", (REPOSITORY / "docs" / "operations.md").read_text(), re.S)
)
PER_BATCH = 4


class Site:
    """A root, a landing place, and Dagster over them. databases: of Postgres, the newest last; none with SQLite."""

    def __init__(self, folder: Path, open_: ExitStack, databases: list[Postgres]) -> None:
        self.folder, self._open, self.databases = folder, open_, databases
        self.landing = folder / "landing"
        self.landing.mkdir()
        environment = {"PENSTOCK_ROOT": str(folder / "root"), "PENSTOCK_LANDING": str(self.landing)}
        environment |= {"SMALL_MAX_WAIT_S": "3600"}  # a batch is made when all four are there
        definitions = REPOSITORY / "tests" / "servers" / "small_pipeline.py"
        url = databases[0].url_of("dagster") if databases else ""
        self.dagster: Deployment = open_.enter_context(
            deployment(folder / "dagster", definitions, environment, url, RUNS_IN_THE_DAEMON)
        )

    def arrive(self) -> None:
        """As many photos as are a batch; no two are ever alike."""
        rng = np.random.default_rng(n := len(list(self.landing.iterdir())))
        for number in range(n, n + PER_BATCH):
            sink = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)).save(sink, "JPEG")
            whole = self.folder / "arriving"
            whole.write_bytes(sink.getvalue())
            whole.rename(self.landing / f"{number:03d}.jpg")

    def await_standings(self, *wanted: str) -> None:
        def are_so() -> bool:
            with loader.Root(self.folder / "root") as root:
                root.create()  # the first look may come before the first tick
                return [one.standing for one in IngestBatches("small").current(root)] == list(wanted)

        self.dagster.wait_for(f"batches are {wanted}", are_so)

    def run(self, block: str) -> None:
        """A block of the page."""
        environment = self.dagster.environment | (self.databases[-1].environment if self.databases else {})
        command = ["bash", "-euo", "pipefail", "-c", BLOCKS[block]]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def lose(self) -> None:
        """Everything is killed, and what Dagster remembers is gone, but for its settings."""
        self.dagster.close()
        settings = (self.dagster.home / "dagster.yaml").read_bytes()
        shutil.rmtree(self.dagster.home)
        self.dagster.home.mkdir()
        (self.dagster.home / "dagster.yaml").write_bytes(settings)
        if self.databases:
            self.databases[-1].kill()
            self.databases.append(self._open.enter_context(postgres()))
            self.dagster.environment["PENSTOCK_DAGSTER_POSTGRES"] = self.databases[-1].url_of("dagster")

    def start(self) -> None:
        self.dagster.prepare()
        self.dagster.start("code-server", "webserver", "daemon")

    def keys(self) -> list[str]:
        """Every object of the root that is not a heartbeat, lease or hint."""
        with loader.Root(self.folder / "root") as root:
            places = ("data/", "stages/", "tables/", "log/")
            return [info.key for place in places for info in root.store.list(place)]


@pytest.fixture(params=["copy", "dump"])
def backup(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def site(tmp_path: Path, backup: str) -> Iterator[Site]:
    with ExitStack() as open_:
        databases = []
        if backup == "dump":
            databases.append(open_.enter_context(postgres()))
            environment = os.environ | databases[0].environment
            subprocess.run(["createdb", "dagster"], env=environment, check=True)
        yield Site(tmp_path, open_, databases)


def test_what_dagster_has_forgotten_is_neither_lost_nor_done_twice(site: Site, backup: str) -> None:
    """Dagster is lost and comes from a backup; that of SQLite is lost once more, without one."""
    site.arrive()
    site.dagster.switch_on("small_discovery")
    site.await_standings("ready")
    release = site.dagster.launch("small_release")
    site.dagster.wait_for("the release is over", is_done(site.dagster, release))  # as a backup has it, too
    site.await_standings("published")
    if backup == "copy":
        site.dagster.close()
        site.run("copy")
        site.dagster.start("code-server", "daemon")
    if backup == "dump":
        site.run("dump")
    site.arrive()  # of this one no backup knows
    site.await_standings("published", "ready")
    site.lose()
    site.run(f"restore-{backup}")
    site.start()
    first, forgotten, third = resume_site(site, 1)
    assert ingest_batches(site.dagster) == [first, third]
    is_filled_again_without_work(site, forgotten)
    if backup == "dump":
        return

    site.arrive()
    site.await_standings(*["published"] * 3, "ready")
    site.lose()
    site.start()
    site.dagster.switch_on("small_discovery")
    *_, fourth, fifth = resume_site(site, 3)
    assert ingest_batches(site.dagster) == [fifth]
    is_filled_again_without_work(site, fourth)


def resume_site(site: Site, n: int) -> list[str]:
    """The batches. n were published, and one was cut when Dagster forgot it; another one arrives."""
    site.arrive()
    site.await_standings(*["published"] * n, "ready", "ready")
    site.dagster.launch("small_release")
    site.await_standings(*["published"] * (n + 2))
    with loader.Root(site.folder / "root") as root:
        batches = [one.key for one in IngestBatches("small").current(root)]
        sources = root.open("small@latest").samples().collect()["raw_sha256"].to_list()
        assert len(sources) == len(set(sources)) == (n + 2) * PER_BATCH
        assert len(root.versions("small")) == n + 2
        for stage in ("raw_objects", "media", "units", "feature_phash", "samples", "version"):
            made = current_records(root.store, "small", stage)
            # The last of two waited with the one before, and was judged again when that had become a version.
            last = 2 if stage == "version" else 1
            assert [made[name].r for name in batches] == [1, *[1, last] * ((n + 1) // 2)]
    assert partitions(site.dagster) == batches
    return batches


def is_filled_again_without_work(site: Site, batch: str) -> None:
    """The page of a batch that Dagster forgot."""
    before = site.keys()
    again = site.dagster.launch("small_ingest", {"dagster/partition": batch})
    site.dagster.wait_for("its page is filled again", is_done(site.dagster, again))
    assert site.keys() == before


def ingest_batches(dagster: Deployment) -> list[str]:
    """The batches of the runs that Dagster knows."""
    return sorted(run["tags"]["dagster/partition"] for run in dagster.runs("small_ingest"))


def partitions(dagster: Deployment) -> list[str]:
    """Those of the batches' assets, as their pages list them."""
    query = """{ assetNodes(assetKeys: [{path: ["small", "samples"]}]) { partitionKeys } }"""
    return sorted(dagster.ask(query)["assetNodes"][0]["partitionKeys"])


def is_done(dagster: Deployment, run_id: str) -> Callable[[], bool]:
    def is_so() -> bool:
        (run,) = (run for run in dagster.runs() if run["runId"] == run_id)
        assert run["status"] != "FAILURE", dagster.events(run_id)
        return bool(run["status"] == "SUCCESS")

    return is_so
