"""Requests of a run's start, from plan, ranks and checkpoint; real ranks are counted in the benchmark's tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.checkpoints.marker import Checkpoint, StoredObject
from penstock.cli import main
from penstock.train.start_requests import StartRequests, start_requests

Saved = Callable[..., loader.Plan]


@pytest.fixture
def save_plan(tmp_path: Path) -> Saved:
    """save_plan(samples of a part, global batch) -> a plan over 64 samples, stored in its root."""

    written = set[str]()

    def plan(part_samples: int, global_batch: int) -> loader.Plan:
        dataset = f"points-{part_samples}"
        with loader.Root(tmp_path / "root") as root:
            if dataset not in written:
                written.add(dataset)
                with root.write(dataset, part_samples=part_samples) as writer:
                    for k in range(64):
                        writer.add(f"{k:02d}", {"x.npy": np.arange(4) + k})
            plan = loader.plan({"points": root.open(dataset)}, seed=7, global_batch=global_batch)
            plan.save(root)
        return plan

    return plan


def checkpoint(n_parts: int, nbytes: int, step: int = 0) -> Checkpoint:
    def stored_object(name: str, nbytes: int) -> StoredObject:
        return StoredObject(name=name, nbytes=nbytes, sha256="0" * 64)

    parts = [stored_object(f"{n}", nbytes // n_parts) for n in range(n_parts)]
    index = stored_object("index", 0)
    return Checkpoint(run="a", step=step, at_us=0, world_size=1, index=index, parts=parts)


def test_samples_of_one_shard_are_one_index_and_adjacent_ones_one_range(save_plan: Saved) -> None:
    assert start_requests(save_plan(1, 8), 1) == StartRequests(indexes=8, samples=8)
    assert start_requests(save_plan(64, 64), 1) == StartRequests(indexes=1, samples=1), "all of a shard"
    assert start_requests(save_plan(1, 8), 4) == StartRequests(indexes=2, samples=2)


def test_checkpoint_is_divided_among_the_ranks(save_plan: Saved) -> None:
    plan = save_plan(1, 8)
    assert start_requests(plan, 2, checkpoint(1, 1000)).checkpoint == 1
    assert start_requests(plan, 2, checkpoint(32, 32_000)).checkpoint == 16
    assert start_requests(plan, 2, checkpoint(4, 2**30)).checkpoint == 32, "16 MiB a request"
    assert start_requests(plan, 2).checkpoint == 0


def test_large_tables_do_not_travel_with_the_plan(save_plan: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = save_plan(1, 8)
    monkeypatch.setattr("penstock.train.start_requests.PREPARED_BYTES", 10)
    assert start_requests(plan, 2).tables == 1
    assert start_requests(plan, 2, checkpoint(1, 1)).waves == [1, 1, 4, 4]


def test_more_ranks_than_samples_are_refused(save_plan: Saved) -> None:
    with pytest.raises(InvalidRuntime):
        start_requests(save_plan(1, 8), 9)


def test_gang_above_the_rate_of_s3_waits() -> None:
    requests = StartRequests(checkpoint=1, indexes=8, samples=8)
    assert requests.text(1000) == (
        "1,000 ranks make 17,000 requests until their first batch, 17 each (1 checkpoint, 8 indexes, 8 samples): 3,400 "
        "per second if they start within 5 s"
    )
    assert "34,000 per second" in requests.text(10_000)
    assert "so this takes 31 s or more" in requests.text(10_000)


def test_dry_run_counts_the_requests_of_the_start(
    save_plan: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = save_plan(1, 8)
    (tmp_path / "run.toml").write_text(
        f'run = "a"\ncommand = ["true"]\nranks_per_node = 2\nrecord = "{tmp_path / "root"}"\n'
    )
    words = ["train", "submit", str(tmp_path / "run.toml"), "--dry-run"]
    assert main(words) == 0
    assert "the requests of its start are unknown without a plan (--plan HASH" in capsys.readouterr().err
    assert main([*words, "--plan", plan.hash]) == 0
    out, errors = capsys.readouterr()
    assert "2 ranks make 16 requests until their first batch, 8 each (4 indexes, 4 samples)" in errors
    assert "torch.distributed.run" in out
    assert "requests" not in out
    assert main([*words, "--plan", f"plan-{'0' * 64}"]) != 0
    capsys.readouterr()
    assert main([*words[:-1], "--plan", plan.hash]) != 0, "it starts nothing"
    assert "--plan counts the requests of --dry-run" in capsys.readouterr().err
    assert not Path(tmp_path / "root" / "trainings").exists()
    with loader.Loader(plan, trail=loader.Trail(loader.Root(tmp_path / "root"), "a")) as batches:
        next(iter(batches))
    assert main(words) == 0
    assert "2 ranks make 16 requests" in capsys.readouterr().err, "the run's own plan"
