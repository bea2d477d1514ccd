"""Works whose blocks write a part: the same bytes whoever computes them, and no part without all of its units."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from loader import Part
from loader.storage import open_store
from penstock.compute.attach import attach
from penstock.compute.cluster import Cluster
from penstock.compute.job import Job, JobFolder
from penstock.compute.local_blocks import compute_here
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.compute.submit import BlockOutcomes
from penstock.compute.work import Fault
from tests.compute.part_works import TEXTS, Text, Written
from tests.refusals import refusal
from tests.servers.patience import until

INLINE = Cluster(engine="inline", packages=("tests",))
LOCAL = Cluster(engine="local", packages=("tests",))


def texts(folder: Path, n: int, does: Mapping[int, str] | None = None) -> list[Text]:
    """Units 0 to n - 1; unit 0 is a block of its own, the others come in threes."""
    folder.mkdir(exist_ok=True)
    return [
        Text(root=str(folder), n=i, does=(does or {}).get(i, "write"), where=str(folder)) for i in range(n)
    ]


def job_in(folder: Path) -> Job[Text, Written]:
    store = open_store(str(folder))
    return Job(store=store, work=TEXTS, about="tests/texts", fingerprint="f", stores=[store])


def on_cluster(units: list[Text], cluster: Cluster) -> list[BlockOutcomes[Written]]:
    job, engine = job_in(Path(units[0].root)), cluster.open()
    try:
        return sorted(attach(job, lambda: units, engine, cluster), key=lambda block: block.number)
    finally:
        engine.close()


def here(units: list[Text], compute: Compute) -> list[BlockOutcomes[Written]]:
    try:
        return list(compute_here(TEXTS, units, compute, [open_store(units[0].root)]))
    finally:
        compute.close()


def hashes(blocks: list[BlockOutcomes[Written]]) -> list[tuple[str, ...]]:
    """SHA-256 of every shard, of its index's footer, and of every samples table."""
    parts = [Part.from_json(block.part.part) for block in blocks]
    return [
        (
            part.id,
            *(told for one in part.shards for told in (one.sha256, one.index_footer_sha256)),
            part.samples.sha256,
        )
        for part in parts
    ]


WAYS: Mapping[str, Callable[[list[Text]], list[BlockOutcomes[Written]]]] = {
    "inline engine": lambda units: on_cluster(units, INLINE),
    "local engine, 1 worker": lambda units: on_cluster(
        units, replace(LOCAL, slot=replace(LOCAL.slot, cpus=1))
    ),
    "local engine, 4 workers": lambda units: on_cluster(
        units, replace(LOCAL, slot=replace(LOCAL.slot, cpus=4))
    ),
    "here, inline": lambda units: here(units, InlineCompute()),
    "here, 2 workers": lambda units: here(units, LocalCompute(2)),
}


def test_parts_have_the_same_bytes_whoever_computes_them(tmp_path):
    found, outcomes = {}, {}
    for way, blocks_of in WAYS.items():
        blocks = blocks_of(texts(tmp_path / way, 8, {2: "raise"}))
        found[way] = hashes(blocks)
        outcomes[way] = [one.error.summary if one.error else "" for block in blocks for one in block.outcomes]
        assert [block.first for block in blocks] == [0, 1, 4, 7]
    assert set(map(str, found.values())) == {str(found["inline engine"])}
    assert set(map(tuple, outcomes.values())) == {("", "", "ValueError: 2 is odd in some way", *[""] * 5)}
    assert [Part.from_json(block.part.part).n_rows for block in blocks] == [1, 2, 3, 1]


def test_part_of_which_the_runner_vanished_has_all_other_units(tmp_path):
    (first, second) = on_cluster(texts(tmp_path, 4, {2: "kill the runner"}), LOCAL)
    assert [one.error and one.error.code for one in second.outcomes] == [None, "crashed", None]
    assert [Part.from_json(block.part.part).n_rows for block in (first, second)] == [1, 2]


def test_store_at_fault_under_a_part_begins_the_block_again_with_all_units(tmp_path):
    units, found = texts(tmp_path, 4, {2: "wait for the store"}), []
    folder = JobFolder(open_store(str(tmp_path)), job_in(tmp_path).id)
    waiting = threading.Thread(target=lambda: found.extend(on_cluster(units, LOCAL)))
    waiting.start()
    until(lambda: not waiting.is_alive() or any(one.left == "failed" for one in folder.starts(1)))
    (tmp_path / "open").touch()
    waiting.join()
    assert Part.from_json(found[1].part.part).n_rows == 3
    assert "block 1 could not be finished: Transient: the store does not answer" in folder.log(1)
    assert len((tmp_path / "begun-1").read_text().split()) >= 2, "what it left was gone with its runner"


def test_block_that_cannot_be_finished_says_why(tmp_path):
    units = texts(tmp_path, 2, {1: "finish badly"})
    for way in ("inline engine", "here, inline"):
        with refusal(Fault, what="block 1", given="ValueError: no part comes of it"):
            WAYS[way](units)
    with refusal(Fault, what="block 0", given="Transient: the store does not answer"):
        here([replace(units[0], does="wait for the store")], LocalCompute(1))


def test_what_units_left_is_gone_behind_their_block(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    units, scratch = texts(tmp_path / "r", 7), tmp_path / "scratch"
    blocks = compute_here(TEXTS, units, InlineCompute(), [open_store(str(tmp_path / "r"))])
    assert [list(scratch.glob("penstock-blocks-*/*")) for _ in blocks] == [[], [], []]
    assert not list((tmp_path / "scratch").iterdir())
