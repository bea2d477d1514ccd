"""The benchmark of datasets: its rows, contestants and section. No speed is asserted."""

from pathlib import Path

import pytest

from benchmarks.data import make
from benchmarks.items import __main__ as command
from benchmarks.items import contestant, page
from benchmarks.items.datasets import Counted, write_photos


def epoch(mib: float) -> dict[str, float]:
    return {"memory_bytes": mib * 2**20, "first_s": 0.5}


def test_section_compares_with_torch_and_marks_what_misses_its_aim() -> None:
    values = {
        "penstock, 2 workers": [epoch(130), epoch(140)],
        "penstock, the script keeps the dataset": [epoch(105), epoch(105)],
        "torch DataLoader, 2 workers": [epoch(100), epoch(100)],
    }
    table = page.Table(
        name="arrays", title="500 MiB of arrays", values=values, failed={"Grain, 2 workers": "no"}
    )
    text = page.section("command", "machine", "", {"torch": "2.0"}, {"torchdata": "not installed"}, [table])
    assert "| 500 MiB of arrays, MiB: 2 workers | 135 | **1.35 (1.30-1.40)** | 100 |  |  |" in text
    assert "| the script keeps the dataset | 105 | 1.05 |  |  |  |" in text
    assert "500 MiB of arrays: Grain, 2 workers failed: no." in text
    assert "penstock, 2 workers: MiB 135 (130-140); first batch, s 0.5" in page.details([table])
    assert "StatefulDataLoader is absent: not installed." in text
    assert "Peers: torch DataLoader 2.0." in text


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata imports it
@pytest.mark.parametrize("peer", ["penstock", "torch", "torchdata"])
def test_contestant_serves_each_of_its_rows_in_its_process(peer: str) -> None:
    served = contestant.Contestant(contestant.PEERS[peer]())
    assert served.hello()["labels"]["small"] == (contestant.OWN,)
    task = {"folder": "", "n": 64, "batch": 8, "workers": 0}
    for row in ("small", "strings"):
        served.open(row=row, label=contestant.OWN, **task)
        assert served.first()["first_s"] > 0
        assert served.turn(0, 0.01)["samples"] > 0
        assert served.epoch()["memory_bytes"] > 0
        served.close()


@pytest.mark.parametrize("peer", ["penstock", "torch"])
def test_contestant_serves_photos(peer: str, tmp_path: Path) -> None:
    write_photos(make("images", tmp_path / "images", 8), tmp_path / "photos")
    served = contestant.Contestant(contestant.PEERS[peer]())
    task = {"folder": str(tmp_path / "photos"), "n": 8, "batch": 4, "workers": 0}
    served.open(row="photos", label=contestant.WORKERS, **task)
    assert served.turn(0, 0.01)["samples"] % 4 == 0
    served.close()


def test_resume_makes_the_items_of_one_batch() -> None:
    served = contestant.Contestant(contestant.Penstock())
    served.open(row="resume", label=contestant.OWN, folder="", n=10**9, batch=8, workers=0)
    resumed = served.resume(10**6)
    assert resumed["items"] == Counted.n_made == 9  # the first item is made twice
    served.close()


def test_datasets_are_measured_end_to_end(tmp_path: Path) -> None:
    options = ["--rows", "small,resume", "--peers", "penstock,unknown", "--rounds", "1", "--scale", "0.02"]
    selected = command.parser().parse_args(options)
    text = command.run(selected, tmp_path)
    assert (
        "`python -m benchmarks.items --rows small,resume --peers penstock,unknown --rounds 1 --scale 0.02`"
        in text
    )
    assert "unknown is absent: KeyError: 'unknown'" in text
    assert "| items of 1 us, us of processor: own process |" in text
    assert "items made: own process | 257 |" in text
    assert "failed" not in text
