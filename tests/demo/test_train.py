"""examples/train.py as a user starts it: real processes, a real SIGKILL."""

import hashlib
import io
import json
import random
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import loader
from examples import train
from examples.demo import training
from loader.api.report import Report, new_reports
from loader.run.trail.slot_columns import tensor_crcs
from penstock.train.run_folder import RunFolder
from tests.servers.processes import python

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 photos of unequal sizes in 3 classes; some smaller than the crop."""
    place = tmp_path_factory.mktemp("train") / "root"
    draw = np.random.default_rng(5)
    with loader.Root(place) as opened, opened.write("photos", part_samples=9) as writer:
        for number in range(23):
            size = (int(draw.integers(90, 200)), int(draw.integers(90, 200)))
            sink = io.BytesIO()
            Image.fromarray(draw.integers(0, 255, (*size, 3), np.uint8)).save(sink, "JPEG")
            writer.add(f"{number:04d}", {"jpg": sink.getvalue(), "cls": number % 3})
    return place


def command(root: Path, out: Path, *options: str) -> list[str]:
    """What comes after `python` or torchrun's own options."""
    given = ["--root", str(root), "--ref", "photos@1", "--out", str(out), "--steps", "9"]
    sizes = ["--global-batch", "7", "--checkpoint-every", "3", "--classes", "3"]
    return [str(TRAIN), *given, *sizes, *options]


def alone(root: Path, out: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """One process, without a launcher."""
    return python(*command(root, out, *options))


def torchrun(root: Path, out: Path, world_size: int, *options: str) -> "subprocess.CompletedProcess[str]":
    """`torchrun --standalone --nproc-per-node <world_size> examples/train.py ...`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    return python(*launcher, *command(root, out, *options))


def losses(folder: Path) -> dict[int, float]:
    """step -> loss, as the last one who did the step has it."""
    found = {}
    for path in sorted(folder.glob("rank-0-*.jsonl"), key=lambda path: int(path.stem.rsplit("-", 1)[1])):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            found[told["step"]] = told["loss"]
    return found


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of one process that nothing stopped."""
    out = tmp_path_factory.mktemp("whole")
    assert alone(root, out, "--run", "whole").returncode == 0
    return out


def test_killed_on_two_ranks_and_resumed_on_one_and_on_three_it_reads_the_same(
    root: Path, whole: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    expected = training.digests(whole)
    assert sorted(expected) == list(range(9))
    assert all(len(values) == 1 for values in expected.values())
    assert len({min(values) for values in expected.values()}) == 9

    crash_at = random.Random(20261120).randrange(3, 8)  # after a first checkpoint, before the end
    killed = torchrun(root, broken, 2, "--crash-at", str(crash_at))
    assert killed.returncode != 0
    assert f"exitcode  : -{signal.SIGKILL.value}" in killed.stderr
    assert sorted(training.digests(broken)) == list(range(crash_at + 1))
    on_three = tmp_path / "on-three"
    shutil.copytree(broken, on_three)

    resumed_at = crash_at // 3 * 3
    for out, ranks, done in (
        (broken, 1, alone(root, broken)),
        (on_three, 3, torchrun(root, on_three, 3)),
    ):
        assert done.returncode == 0, done.stderr
        assert training.digests(out) == expected  # also the steps since the checkpoint, which were done twice
        assert losses(out) == pytest.approx(losses(whole), abs=2e-3)
        logs = {f"rank-{rank}-of-{ranks}-from-{resumed_at}.jsonl" for rank in range(ranks)}
        assert logs <= {path.name for path in out.iterdir()}
        assert not list(out.glob("*.part"))

    folder = RunFolder(loader.Root(root).store, "train")
    assert [facts["ranks"] for _, facts in sorted(folder.attempts().items())] == [2, 1, 3]
    steps = [(event.attempt, event.name, event.step) for event in folder.events()]
    assert [one for one in steps if one[1] in ("restored", "ended")] == [
        (2, "restored", resumed_at),
        (2, "ended", 9),
        (3, "restored", resumed_at),
        (3, "ended", 9),
    ]


def test_each_checkpoint_is_told_to_the_pipeline(root: Path, tmp_path: Path) -> None:
    assert alone(root, tmp_path / "out", "--run", "told").returncode == 0
    with loader.Root(root) as opened:
        told = [
            one for _, one in new_reports(opened, "photos") if isinstance(one, Report) and one.run == "told"
        ]
    assert [(one.first_step, one.last_step) for one in told] == [(0, 2), (0, 5), (0, 8)]
    assert {one.checkpoint for one in told} == {str(tmp_path / "out" / "checkpoints")}
    assert [one.metrics["loss"] for one in told] == pytest.approx(
        [losses(tmp_path / "out")[step] for step in (2, 5, 8)], abs=1e-6
    )


def test_checkpoint_of_another_order_is_refused(root: Path, whole: Path) -> None:
    other = alone(root, whole, "--run", "whole", "--seed", "8")
    assert other.returncode != 0
    assert "PlanMismatch" in other.stderr
    assert "seed" in other.stderr


def write_log(folder: Path, name: str, digests: dict[int, int]) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    lines = [
        json.dumps({"step": step, "digest": f"{digest:016x}", "loss": 1.0})
        for step, digest in digests.items()
    ]
    (folder / name).write_text("\n".join(lines) + "\n")


def test_comparing_finds_every_kind_of_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEPS", 3)
    big = 2**64 - 1
    write_log(tmp_path / "whole", "rank-0-of-1-from-0.jsonl", {0: 5, 1: 6, 2: 7})
    resumed = tmp_path / "resumed"
    write_log(resumed, "rank-0-of-2-from-0.jsonl", {0: 6, 1: 2, 2: 100})
    write_log(resumed, "rank-1-of-2-from-0.jsonl", {0: big, 1: 4})  # sums wrap; step 2 was not done by both
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 6, 2: 7})
    same = training.compare(tmp_path)
    assert (same.different, same.repeated, same.n_steps) == ((), (1,), 3)
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 6, 2: 8})
    assert training.compare(tmp_path).different == (2,)
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 9, 2: 7})
    assert training.compare(tmp_path).different == (1,)  # done twice, not alike
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 6})
    assert training.compare(tmp_path).different == (2,)  # never done


def test_trail_of_a_run_proves_its_steps(root: Path, whole: Path) -> None:
    expected = training.digests(whole)
    with loader.Root(root) as opened:
        found = loader.read_trail(opened, "whole")
        steps = found.steps
        assert {row["step"]: {row["digest"]} for row in steps.iter_rows(named=True)} == expected
        assert dict(zip(steps["step"], steps["note.loss"], strict=True)) == pytest.approx(
            losses(whole), abs=1e-6
        )
        assert {len(largest) for largest in steps["largest"]} == {7}
        start = found.starts[0]
        assert start.transforms[""].name == "train:augment"
        assert start.transforms[""].sha256 == hashlib.sha256(TRAIN.read_bytes()).hexdigest()
        with loader.Replay(loader.plan_of(opened, "whole", 8), **train.recipe()) as replay:
            batch = replay.batch(0)
        crcs = tensor_crcs(batch.fields)
        (row,) = steps.filter(steps["step"] == 0).to_dicts()
        assert {name: row[f"crc.{name}"] for name in crcs} == crcs
