"""Wrong reads of real ranks reach the record; a run without any leaves no object."""

import os
from collections.abc import Callable
from pathlib import Path

import loader
from loader.dataset.shards.address import FieldAddress
from penstock.train.record_writer import parse_faults
from penstock.train.run_folder import RunFolder
from tests.penstock.train.conftest import Rank

Start = Callable[..., list[Rank]]
STEPS = 10


def bad_sample(root: str) -> FieldAddress:
    """Change a byte of one sample of the first step in place, and return where it lies."""
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    place = loader.explain(plan, 0)[3].address.fields["cls"]
    file = Path(root) / place.path
    status, data = file.stat(), bytearray(file.read_bytes())
    data[place.offset] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return place


def test_wrong_reads_of_any_rank_are_stored_with_their_node(root: str, start: Start) -> None:
    place = bad_sample(root)
    environment = {"PENSTOCK_RUN": "big-7", "PENSTOCK_RECORD": root, "SLURMD_NODENAME": "q-41"}
    ranks = start(2, "--steps", STEPS, "--step-s", 0, **environment)
    assert [rank.status() for rank in ranks] == [0, 0], ranks[0].text
    folder = RunFolder(loader.Root(root).store, "big-7")
    lists = list(folder.store.list(folder.key("faults/")))
    faults = [pair for info in lists for pair in parse_faults(folder.store, info)]
    assert {(node, one.address, one.begin, one.end, one.expected) for node, one in faults} == {
        ("q-41", place.path, place.offset, place.offset + place.nbytes, f"{place.crc32c:08x}")
    }
    assert all(one.actual not in ("", one.expected) and one.kind == "read" for _, one in faults)
    assert [info.key.split("-")[2:4] for info in lists] == [["q", "41"]]


def test_run_without_wrong_reads_stores_no_faults(root: str, start: Start) -> None:
    (rank,) = start(1, "--steps", 3, "--step-s", 0, PENSTOCK_RUN="big-7", PENSTOCK_RECORD=root)
    assert rank.status() == 0, rank.text
    assert list(loader.Root(root).store.list("trainings/big-7/faults/")) == []


def test_store_that_refuses_faults_costs_only_faults(root: str, start: Start) -> None:
    bad_sample(root)
    blocked = Path(root) / "trainings" / "big-7" / "faults"
    blocked.parent.mkdir(parents=True)
    blocked.write_bytes(b"")  # no folder can be made there
    (rank,) = start(1, "--steps", STEPS, "--step-s", 0, PENSTOCK_RUN="big-7", PENSTOCK_RECORD=root)
    assert rank.status() == 0, rank.text
    assert [step for step, _ in rank.took] == list(range(STEPS))
    assert "could not store" in rank.text
