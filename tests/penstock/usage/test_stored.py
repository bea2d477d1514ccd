"""Stored bytes of versions: they add up to the objects in the store, and deleting frees as much as announced."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import loader
from penstock.cli import main
from penstock.search.index_build import make_index
from penstock.search.map.stored_map import make_map
from penstock.upkeep.gc.needed import Unreadable, protected, references
from penstock.usage.stored import stored_bytes
from tests.proxy_stores import ObservedStore

DAY = 86_400


def add(root: loader.Root, dataset: str, names: Iterable[str], owner: str = "") -> None:
    with root.write(dataset, part_samples=2, producer={"owner": owner}) as writer:
        for name in names:
            writer.add(name, {"x": name.encode() * 1000})


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    """Three versions of points, each with the samples of the one before; one of words."""
    root = loader.Root(tmp_path / "root")
    add(root, "points", "abcd", owner="ann")
    add(root, "points", "efgh", owner="ann")
    add(root, "points", "ij", owner="bob")
    add(root, "words", "abcdefg", owner="bob")
    return loader.Root(tmp_path / "root")


def in_store(root: loader.Root) -> int:
    """Bytes of the objects that the collector keeps for versions, as the store lists them; without manifests."""
    state = root.log.refresh()
    records = list(protected(state, []).values())
    needed = references(
        root.store, records, Unreadable(root.store, state, (), mirror=False)
    ).paths.to_pylist()
    sizes = {info.key: info.nbytes for info in root.store.list("data/")}
    return sum(sizes[path] for path in set(needed) - {record.manifest for record in records})


def test_bytes_add_up_to_the_objects_in_the_store(root: loader.Root) -> None:
    stored = stored_bytes(root.store, root.state)
    assert stored.nbytes == in_store(root)
    for by in ("dataset", "version", "owner"):
        assert sum(row.nbytes for row in stored.rows(by)) == stored.nbytes
    assert [row.name for row in stored.rows("dataset")] == ["points", "words"]
    assert {row.name: row.versions for row in stored.rows("owner")} == {"ann": 2, "bob": 2}


def test_deleting_frees_what_was_said(root: loader.Root, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest version frees its own objects only, an older one next to nothing, all of them everything."""
    stored = stored_bytes(root.store, root.state)
    rows = {row.name: row for row in stored.rows("version")}
    assert rows["points@3"].frees == rows["points@3"].nbytes > 0
    assert rows["points@1"].frees < 1000 < rows["points@1"].nbytes
    for name, options in (("points@3", []), ("points@2", []), ("points@1", [])):
        before = stored_bytes(root.store, root.state).nbytes
        (row,) = (row for row in stored_bytes(root.store, root.state).rows("version") if row.name == name)
        assert main(["retire", name, "--reason", "test", "--root", root.url, *options]) == 0
        after = stored_bytes(root.store, root.log.refresh()).nbytes
        assert before - after == row.frees, name
    assert stored_bytes(root.store, root.state).nbytes == rows["words@1"].nbytes


def embed(root: loader.Root, first: int, last: int) -> None:
    with root.write("photos", part_samples=2) as writer:
        for number in range(first, last):
            vector = np.random.default_rng(number).normal(size=64).astype(np.float32)
            writer.add(f"k{number}", {"embedding.npy": vector, "caption.txt": "red cup"})


def test_indexes_and_maps_count_until_the_last_version_with_their_parts(root: loader.Root) -> None:
    without = stored_bytes(root.store, root.state).nbytes
    embed(root, 0, 6)
    photos = stored_bytes(root.store, root.log.refresh()).nbytes - without
    make_index(root, "photos")
    make_map(root, "photos")
    shared = sum(info.nbytes for prefix in ("search/", "maps/") for info in root.store.list(prefix))
    embed(root, 6, 10)
    make_index(root, "photos")
    make_map(root, "photos")
    derived = sum(info.nbytes for prefix in ("search/", "maps/") for info in root.store.list(prefix))
    assert derived > shared > 0
    stored = stored_bytes(root.store, root.log.refresh())
    assert stored.nbytes == in_store(root) + derived
    rows = {row.name: row for row in stored.rows("version")}
    assert rows["photos@1"].nbytes == photos + shared
    # The later version has the parts of the first one, too.
    assert rows["photos@1"].frees < shared
    assert rows["photos@2"].frees > derived - shared
    (row,) = (row for row in stored.rows("dataset") if row.name == "photos")
    assert row.nbytes == row.frees == stored.nbytes - without
    root.retire("photos@2", reason="old")
    assert stored.nbytes - stored_bytes(root.store, root.log.refresh()).nbytes == rows["photos@2"].frees
    damaged = next(info.key for info in root.store.list("search/") if info.key.endswith(".texts.parquet"))
    root.store.put(damaged, b"x")
    assert stored_bytes(root.store, root.log.refresh()).nbytes > without


def test_shards_that_many_tables_name_count_once(tmp_path: Path) -> None:
    """Publishing merges tables: later versions name the same shards by other tables."""
    root = loader.Root(tmp_path / "root")
    for number in range(20):
        add(root, "points", [f"{number}a", f"{number}b"])
    stored = stored_bytes(root.store, root.log.refresh())
    assert stored.nbytes == in_store(root)
    rows = {row.name: row for row in stored.rows("version")}
    assert all(rows[f"points@{number}"].nbytes > 1000 for number in range(1, 21)), "each with its shard"
    assert rows["points@20"].frees == rows["points@20"].nbytes
    assert all(rows[f"points@{number}"].frees < rows[f"points@{number}"].nbytes for number in range(1, 20))


@pytest.mark.parametrize("versions", [3, 12])
def test_requests_are_one_per_manifest_and_table(tmp_path: Path, versions: int) -> None:
    root = loader.Root(tmp_path / "root")
    for number in range(versions):
        add(root, "points", [f"{number}-{sample}" for sample in range(9)])
    state, counted = root.log.refresh(), ObservedStore(root.store)

    stored_bytes(counted, state)  # type: ignore[arg-type]
    verbs = Counter(verb for verb, _ in counted.calls)
    assert verbs == {"get": 2 * versions, "list": 2}
    assert {key for verb, key in counted.calls if verb == "list"} == {"maps/", "search/"}


def test_weeks_hold_what_was_published_by_then(root: loader.Root) -> None:
    stored = stored_bytes(root.store, root.state)
    now_us = stored.versions[-1].created_us
    assert stored.weekly(now_us) == [stored.nbytes]
    assert stored.weekly(now_us + 15 * DAY * 1_000_000) == [stored.nbytes] * 3


def test_verb_prices_and_forecasts(
    root: loader.Root, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["usage", "--stored", "--root", root.url]
    assert main([*options, "--by", "version", "--price-gb", "s3=9", "--price-gb", "file=1024", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows[:2]] == ["words@1", "points@1"]
    assert rows[0]["usd_per_month"] == pytest.approx(rows[0]["nbytes"] / 2**20, abs=1e-4)
    assert main([*options, "--csv"]) == 0
    assert capsys.readouterr().out.startswith("name,versions,nbytes,registered,frees\npoints,3,")
    assert main([*options, "--forecast"]) == 0
    assert "too little history" in capsys.readouterr().out
    assert main([*options, "--by", "user"]) == 2
    assert "--by user is without --stored; accepted here: dataset, version, owner" in capsys.readouterr().err
