"""The scripts of docs/training.md: each is run to step 4, and again, to step 7."""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import loader
from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
SCRIPTS = dict(re.findall(r"```python (\w+)\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.S))
FRAMEWORKS = (
    *("torch", "torch._dynamo", "torchdata.stateful_dataloader"),  # (optimizers import _dynamo on first use)
    *("lightning.pytorch.callbacks", "accelerate", "jax", "penstock.checkpoints"),
)


@pytest.fixture(scope="module")
def scripts(shared: Callable[[str], Any]) -> Any:
    """run/scripts.py, which says what its processes do."""
    return shared("run/scripts")


@pytest.fixture(scope="module")
def do(shared: Callable[[str], Any], scripts: Any) -> Iterator[Any]:
    """do(script, *arguments) -> what became of it in a process of its own. Frameworks that are there are imported."""
    there = [name for name in FRAMEWORKS if find_spec(name.partition(".")[0])]
    with scripts.script_runner(shared("dataset/forks"), *there) as do:
        yield do


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's data, and no launcher's environment."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPTS["data"], "docs/training.md: data", "exec"), {"__name__": "__main__"})
    return tmp_path


def expected_digests(steps: range) -> list[tuple[int, int]]:
    plan = loader.plan({"points": loader.Root("data").open("points@1")}, seed=7, global_batch=8)
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        return [(step, batches.batch_at(step).digest) for step in steps]


def run_python(*command: str) -> str:
    """What a command of Python's prints."""
    done = python("-W", *command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_tried() -> None:
    assert set(SCRIPTS) == {
        "data",
        "plain",
        "run",
        "stateful",
        "lightning",
        "accelerate",
        "torchtrainer",
        "jax",
        "packed",
    }


def test_packed_documents(place: Path, do: Any) -> None:
    Path("train.py").write_text(SCRIPTS["packed"])
    run_python("error", "train.py", "1")
    done = do(place / "train.py", 30, folder=place, warn="error")  # it runs again where it ran before
    assert done.codes == [0], done.errors
    assert "packed from 400 documents" in done.out
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.out)]
    assert len(losses) == 30
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(
            pytest.param(name, marks=[pytest.mark.server, pytest.mark.nightly])
            for name in ("stateful", "lightning", "accelerate", "jax")
        ),
    ],
)
def test_script_goes_on_where_it_stopped(place: Path, do: Any, name: str) -> None:
    Path("train.py").write_text(SCRIPTS[name])
    for steps in (range(4), range(4, 7)):
        done = do(place / "train.py", steps.stop, folder=place)
        assert (done.codes, done.took) == ([0], expected_digests(steps)), done.errors


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def test_ranks_under_torchrun_may_change_in_number(
    place: Path, do: Any, scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # each rank would take a GPU of its own
    Path("train.py").write_text(SCRIPTS["run"])
    assert scripts.took(run_python("ignore", *TORCHRUN, "2", "train.py", "4")) == expected_digests(range(4))
    done = do(place / "train.py", 7, folder=place, world_size=3)
    assert (done.codes, done.took) == ([0, 0, 0], expected_digests(range(4, 7))), done.errors


@pytest.mark.gpu
def test_rank_under_torchrun_trains_on_its_gpu(place: Path, scripts: Any) -> None:
    begin = "    torch.manual_seed(0)"
    told = "    print('on', torch.distributed.get_backend(), run.device)\n"
    Path("train.py").write_text(SCRIPTS["run"].replace(begin, told + begin))
    for steps in (range(4), range(4, 7)):
        out = run_python("ignore", *TORCHRUN, "1", "train.py", str(steps.stop))
        assert scripts.took(out) == expected_digests(steps)
        assert "on nccl cuda:0\n" in out


@pytest.mark.ray
def test_run_in_a_torch_trainer_stops_and_continues(
    place: Path, scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    asks = "batch.step % 100 == 0 and ray.train.get_preemption_info()"
    assert asks in SCRIPTS["torchtrainer"]
    script = SCRIPTS["torchtrainer"].replace(asks, "batch.step == 2 and run.world.rank == 1")
    Path("train.py").write_text(script.replace("    trainer =", "    ray.init(num_cpus=2)\n    trainer ="))
    out = run_python("ignore", "train.py", "7")
    assert scripts.took(out) == expected_digests(range(7))
    assert len(set(re.findall(r"RayTrainWorker pid=(\d+)", out))) == 4  # two ranks, begun twice
