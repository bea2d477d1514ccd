"""What a run waits for: a slow store is named by its stage, a slow node by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from benchmarks.latency_server import CREDENTIALS, latency_store
from loader.run.batch.batch import MAKING
from penstock.cli import main
from penstock.train.run_folder import RunFolder
from penstock.train.starved import Starvation, starvation
from tests.penstock.train.conftest import Rank

Start = Callable[..., list[Rank]]


def train_ranks(root: str, start: Start, fast_ms: float, slow_ms: float, slow_rank: int) -> Starvation:
    """Train with two ranks, each on a node of its own, one of which may read more slowly."""
    data = f"{root}-data"
    with loader.Root(data) as local, local.write("points", part_samples=50) as writer:
        for number in range(200):
            writer.add(f"{number:03d}", {"x.npy": np.full(2000, number)})
    with latency_store(Path(data), fast_ms / 1e3) as fast, latency_store(Path(data), slow_ms / 1e3) as slow:
        environment = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": fast.options["endpoint_url"],
            "AWS_ALLOW_HTTP": "true",
        }
        ranks = start(
            *(2, "--window-s", 0.2, "--steps", 12, "--step-s", 0.005, "--data", "s3://bucket"),
            *("--slow-rank", slow_rank, "--slow-endpoint", slow.options["endpoint_url"]),
            **environment,
            PENSTOCK_RECORD=root,
            PENSTOCK_RUN="big-7",
        )
        assert [rank.status() for rank in ranks] == [0, 0], ranks[-1].text
    return starvation(RunFolder(loader.Root(root).store, "big-7").intervals())


def test_slow_store_delays_all_ranks(root: str, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    report = train_ranks(root, start, 40, 40, -1)
    assert report.is_starved
    assert report.together > 0.5
    assert next(iter(report.stages)) == "fetch"
    assert sum(report.stages.values()) == pytest.approx(1)
    slow = report.slowest[0]
    assert (slow.stage, slow.version, slow.path[:5]) == ("fetch", "points@1", "data/")
    assert slow.nbytes > 0
    assert slow.wait_s >= report.slowest[-1].wait_s > 0
    assert main(["train", "starved", "big-7", "--root", root]) == 0
    text = capsys.readouterr().out
    assert "no node was slower" in text
    assert ": store\n" in text
    assert f"{slow.path} bytes [{slow.offset}:" in text


def test_slow_node_is_named(root: str, start: Start) -> None:
    report = train_ranks(root, start, 0, 200, 1)
    assert report.is_starved
    assert report.together < 0.5
    assert [node.node for node in report.nodes] == ["m1"]
    assert report.nodes[0].read_s >= 0.2 > 2 * report.nodes[0].others_read_s > 0
    assert "  m1: " in report.to_text()
    assert report.slowest[0].node == "m1"


def columns(waits: list[tuple[int, int, float]], read_s: float = 0.5) -> dict[str, np.ndarray[Any, Any]]:
    """Return intervals of (attempt, end step, seconds that a rank waited)."""
    n = len(waits)
    numbers = ("first_step", "slow_wait_s", *(f"{stage}_s" for stage in MAKING))
    return {
        **{name: np.zeros(n) for name in numbers},
        "attempt": np.array([attempt for attempt, _, _ in waits]),
        "end_step": np.array([end for _, end, _ in waits]),
        "wait_s": np.array([wait_s for _, _, wait_s in waits], float),
        "fetch_s": np.ones(n),
        "slow_read_s": np.array([read_s if wait_s else 0.1 for _, _, wait_s in waits]),
        "step_s": np.full(n, 10.0),
        "node": np.array([f"m{number % 4}" for number in range(n)], object),
    }


def test_waiting_of_a_interval_is_its_slowest_ranks() -> None:
    intervals = columns(
        [(1, 5, 8), (1, 5, 0), (1, 5, 0), (1, 5, 0), (1, 9, 1), (1, 9, 1), (1, 9, 2), (1, 9, 2)]
    )
    report = starvation(intervals)
    assert report.share == pytest.approx((8 + 2) / 20)
    assert report.together == pytest.approx(2 / 10)
    assert [(node.node, node.share) for node in report.nodes] == [("m0", 0.8)]
    assert not starvation(columns([(1, 5, 0.5)])).is_starved


def test_rank_that_waits_alone_and_reads_as_fast_as_others_is_not_accused() -> None:
    report = starvation(columns([(1, 5, 8), (1, 5, 0), (1, 5, 0)], read_s=0.15))
    assert (report.share, report.together, report.nodes) == (0.8, 1.0, [])
