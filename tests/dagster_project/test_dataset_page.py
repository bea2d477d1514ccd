"""The walk of docs/extending.md, typed as it stands: a dataset in a repository of its own, through `dg dev`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from PIL import Image

import loader
from penstock.compute.process_groups import end_group, has_ended
from tests.servers.patience import until
from tests.servers.ports import free_port

pytestmark = pytest.mark.server
REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "extending.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE, re.M | re.S))


def script(*names: str) -> str:
    """The blocks, one after the other, with this checkout and this environment in place of `~/penstock`."""
    activate = f"source {Path(sys.executable).parent / 'activate'}"
    text = "".join(BLOCKS[name] for name in names).replace("source ~/penstock/.venv/bin/activate", activate)
    return text.replace("~/penstock", str(REPOSITORY))


def new_shell() -> dict[str, str]:
    kept = ("HOME", "LANG", "TMPDIR", "PENSTOCK_NATIVE")
    return {"PATH": os.defpath, **{name: os.environ[name] for name in kept if name in os.environ}}


def shell_output(text: str, folder: Path) -> str:
    """What a new shell in the folder prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=new_shell(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def dg_dev(folder: Path, log: Path) -> Iterator[None]:
    """`dg dev` in another shell; it and all that it started end with the block."""
    text = script("environment", "dev").replace("dg dev", f"exec dg dev --port {free_port()}")
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-euc", text],
            cwd=folder,
            env=new_shell(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(lambda: "Serving dagster-webserver" in log.read_text(errors="replace"), log.read_text)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with suppress(AssertionError):
            until(lambda: has_ended(process))
        end_group(process)


def file_times() -> Mapping[str, float]:
    """Return the tracked files of the checkout, and when they were written."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, stdout=subprocess.PIPE)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return {name: (REPOSITORY / name).stat().st_mtime for name in names if (REPOSITORY / name).exists()}


def test_dataset_of_another_repository_becomes_a_version(tmp_path: Path) -> None:
    before = file_times()
    shell_output(script("lab"), tmp_path)
    lab = tmp_path / "birds"
    (lab / "datasets" / "birds.py").write_text(BLOCKS["birds.py"])
    (lab / "datasets" / "torn.py").write_text("def torn(:\n")  # stops nothing
    for number in range(3):
        coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(coarse).resize((96, 64)).save(lab / "landing" / f"{number}.jpg", "JPEG")
    log = tmp_path / "dev.log"
    with dg_dev(lab, log):
        shell_output(script("environment", "discover"), lab)
        instance = dg.DagsterInstance.from_config(str(lab / "dagster_home"))

        def has_succeeded(job: str = "birds_ingest") -> bool:
            runs = instance.get_runs(dg.RunsFilter(job_name=job))
            assert not any(run.status == dg.DagsterRunStatus.FAILURE for run in runs), log.read_text(
                errors="replace"
            )
            return any(run.status == dg.DagsterRunStatus.SUCCESS for run in runs)

        try:
            until(has_succeeded, log.read_text)
            assert "birds@1" in shell_output(script("environment", "release"), lab)
            shell_output(script("environment", "backfill"), lab)
            until(lambda: has_succeeded("birds_refresh"), log.read_text)
        finally:
            instance.dispose()
    with loader.Root(lab / "root") as root:
        version = root.open("birds@1")
        assert len(version) == 3
        assert set(version.fields) > {"jpg"}
    assert f"dataset not loaded: {lab / 'datasets' / 'torn.py'}:1: SyntaxError" in log.read_text(
        errors="replace"
    )
    assert file_times() == before
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=lab, stdout=subprocess.PIPE, text=True, check=True
    )
    assert status.stdout.split() == ["??", ".gitignore", "??", "datasets/"]


def test_dataset_of_the_walk_has_ten_lines() -> None:
    assert sum(bool(line.strip()) for line in BLOCKS["birds.py"].splitlines()) <= 10
