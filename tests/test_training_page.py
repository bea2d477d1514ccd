"""The scripts of docs/training.md: each is run to step 4, and again, to step 7."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import loader

ROOT = Path(__file__).parent.parent
SCRIPTS = dict(re.findall(r"```python (\w+)\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.S))
MODULUS = 2**64


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's data, and no launcher's environment."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPTS["data"], "docs/training.md: data", "exec"), {"__name__": "__main__"})
    return tmp_path


def expected(steps: range) -> list[tuple[int, int]]:
    plan = loader.plan({"points": loader.Root("data").open("points@1")}, seed=7, global_batch=8)
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        return [(step, batches.batch_at(step).digest) for step in steps]


def run(name: str, steps: int, *launcher: str) -> list[tuple[int, int]]:
    """The script as a process of its own -> the (step, digest over its ranks) that it tells."""
    Path("train.py").write_text(SCRIPTS[name])
    command = [sys.executable, "-W", "ignore", *launcher, "train.py", str(steps)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    digests: dict[int, int] = {}
    for step, digest in re.findall(r"took (\d+) (\d+)\n", done.stdout):  # a progress bar shares its line
        digests[int(step)] = (digests.get(int(step), 0) + int(digest)) % MODULUS
    return sorted(digests.items())


def test_every_script_is_tried() -> None:
    assert set(SCRIPTS) == {"data", "plain", "ddp", "stateful", "lightning", "accelerate", "jax", "packed"}


def test_packed_documents(place: Path) -> None:
    Path("train.py").write_text(SCRIPTS["packed"])
    command = [sys.executable, "-W", "error", "train.py"]
    for steps in ("1", "30"):  # it runs again where it ran before
        done = subprocess.run(
            [*command, steps],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    assert "packed from 400 documents" in done.stdout
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 30
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(
            pytest.param(name, marks=pytest.mark.server)
            for name in ("stateful", "lightning", "accelerate", "jax")
        ),
    ],
)
def test_a_script_goes_on_where_it_stopped(place: Path, name: str) -> None:
    assert run(name, 4) == expected(range(4))
    assert run(name, 7) == expected(range(4, 7))


def test_ranks_under_torchrun_may_change_in_number(place: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    assert run("ddp", 4, *torchrun, "2") == expected(range(4))
    assert run("ddp", 7, *torchrun, "1") == expected(range(4, 7))
