"""The log of a batch names the things that its source states and lacks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import loader
from assets.ingest.formats.missing_notes import missing_notes
from assets.sources import Source
from assets.spec import DatasetSpec
from loader.errors import Forbidden
from loader.storage import ObjectInfo, open_store
from penstock.formats.importer import NO_OPTIONS
from tests.assets.conftest import Run
from tests.penstock.formats.builders import mds_files, tars
from tests.refusals import refusal


def archive(path: Path, key: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tars.tar_bytes([(f"{key}.txt", key.encode())]))


@pytest.mark.parametrize("keep", ["copy", "in place"])
def test_batch_names_archives_that_other_names_state(
    keep: str,
    tmp_path: Path,
    root: loader.Root,
    run: Run,
    arrive: Callable[[Path], str],
    instance: dg.DagsterInstance,
) -> None:
    place = tmp_path / "tars"
    archive(place / "a-0-of-3.tar", "x")
    archive(place / "a-2-of-3.tar", "y")
    demo = DatasetSpec(name="demo", sources=(Source(format="webdataset", keep=keep),))  # type: ignore[arg-type]
    result = run("ingest", demo, arrive(place), place)
    assert result.success
    logs = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("missing so far:" in text and "has no a-1-of-3.tar" in text for text in logs)


def test_notes_name_shards_that_an_index_lists(tmp_path: Path) -> None:
    mds_files.fill(tmp_path, {"a": "bytes"}, [{"a": b"1"}], [{"a": b"2"}])
    store = open_store(str(tmp_path))
    keys = {info.key for info in store.list()}
    assert missing_notes(store, "mds", NO_OPTIONS, keys) == []
    shard = min(key for key in keys if key.endswith(".mds"))
    (tmp_path / shard).unlink()
    (note,) = missing_notes(store, "mds", NO_OPTIONS, keys)
    assert f"index.json lists {shard}" in note
    (tmp_path / "index.json").write_text("[]")  # the objects themselves are refused for that
    assert missing_notes(store, "mds", NO_OPTIONS, keys) == []


def test_notes_are_for_sets_of_the_batch(tmp_path: Path) -> None:
    archive(tmp_path / "a-0-of-2.tar", "x")
    store = open_store(str(tmp_path))
    assert missing_notes(store, "webdataset", NO_OPTIONS, ["b.tar"]) == []
    assert missing_notes(store, "files", NO_OPTIONS, ["a-0-of-2.tar"]) == []
    (note,) = missing_notes(store, "webdataset", NO_OPTIONS, ["a-0-of-2.tar"])
    assert "has no a-1-of-2.tar" in note


def test_notes_raise_what_is_no_fault_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mds_files.fill(tmp_path, {"a": "bytes"}, [{"a": b"1"}])
    store = open_store(str(tmp_path))
    keys = {info.key for info in store.list()}

    def refuse(*_: object, **__: object) -> object:
        raise Forbidden("the token has expired", what="token")

    monkeypatch.setattr(type(store), "get", refuse)
    with refusal(Forbidden, what="token"):
        missing_notes(store, "mds", NO_OPTIONS, keys)


def test_notes_about_names_list_only_their_common_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "new/a-0-of-2.tar", "x")
    archive(tmp_path / "new/b-1-of-2.tar", "y")
    archive(tmp_path / "old/a-0-of-2.tar", "z")
    store = open_store(str(tmp_path))
    keys = [info.key for info in store.list("new/")]
    listed = list[str]()
    list_all = type(store).list_place  # type: ignore[attr-defined]

    def list_place(*arguments: Any, **options: Any) -> Iterator[ObjectInfo]:
        for info in list_all(*arguments, **options):
            listed.append(info.key)
            yield info

    monkeypatch.setattr(type(store), "list_place", list_place)
    notes = missing_notes(store, "webdataset", NO_OPTIONS, keys)
    assert [note.partition(" has no ")[2].partition(",")[0] for note in notes] == [
        "new/a-1-of-2.tar",
        "new/b-0-of-2.tar",
    ]
    assert listed == keys
