"""Workers import from the folders of a code location, which Dagster takes off the path after it has loaded it."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.compute.cluster import Cluster
from penstock.compute.engines import local_engine
from penstock.compute.pool import LocalCompute, import_path
from tests.compute.job_checks import REPOSITORY, done_by, job_in, numbers, told_of

TIMEOUT_S = 600.0


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of a folder that was on the path only while a code location loaded."""
    monkeypatch.setattr(import_path, "_folders", [])
    (tmp_path / "location_helper.py").write_text("def double(x):\n    return 2 * x\n")
    path = [*sys.path]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *path])
    import location_helper  # type: ignore[import-not-found]

    import_path.keep_import_path()
    sys.path = path
    yield location_helper
    del sys.modules["location_helper"]


def test_workers_import_from_a_code_locations_folders(helper, tmp_path: Path) -> None:
    assert str(tmp_path) not in sys.path
    engine = LocalCompute(1)
    try:
        (outcome,) = engine.map(helper.double, [4], timeout_s=TIMEOUT_S)
    finally:
        engine.close()
    assert outcome.value == 8


def test_kept_folders_stand_behind_the_path_and_once(helper, tmp_path: Path) -> None:
    import_path.keep_import_path()
    path = import_path.import_path()
    assert path[-1] == str(tmp_path)
    assert path.count(str(tmp_path)) == 1
    import_path.restore_import_path()
    assert sys.path == path


def test_nodes_get_the_folders_outside_the_environment(helper, tmp_path: Path) -> None:
    folders = import_path.code_folders()
    assert str(tmp_path) in folders
    assert not any(folder.startswith(os.path.join(sys.prefix, "")) for folder in folders)


def test_runner_without_the_submitters_variables_imports_from_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Slurm and Ray: the runner's command alone says where the code is."""
    monkeypatch.setattr(import_path, "_folders", [])
    monkeypatch.syspath_prepend(str(REPOSITORY))
    import_path.keep_import_path()
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    monkeypatch.setattr(local_engine, "_environment", lambda _: {**bare, "PYTHONSAFEPATH": "1"})
    cluster = Cluster(engine="local", packages=("tests",))
    slot = replace(cluster.slot, cpus=1)
    assert told_of(done_by(job_in(tmp_path), numbers(3), replace(cluster, slot=slot))) == [0, 1, 4]
