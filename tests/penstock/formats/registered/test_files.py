"""Plain files, a sample each: thousands of objects that one index describes, each held to what was registered."""

import itertools
import os

import pytest

import loader
from loader.errors import Changed
from loader.storage import open_store
from loader.storage.requests import Traffic, count_requests
from penstock.formats import files as plain_files
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

_numbers = itertools.count()


@pytest.fixture
def folder(tmp_path):
    """Texts and clips in folders, some of them empty, and a hidden file."""
    for i in range(30):
        path = tmp_path / f"files/{i % 3}/f{i:02}.{'TXT' if i % 5 else 'cls'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(i).encode() * (i % 4 if i % 5 else 1))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (tmp_path / "files/.git").mkdir()
    (tmp_path / "files/.git/x.txt").write_bytes(b"hidden")
    (tmp_path / "files/README").write_bytes(b"no extension")
    return tmp_path / "files"


def epoch_values(version, field, **how):
    """key -> value, of one epoch."""
    view = version.select(field, where_present=True)
    plan = loader.plan({"p": view}, seed=1, global_batch=len(view))
    with loader.Loader(plan, **how) as batches:
        batch = next(iter(batches))
    return {
        key: str(value) for (_, key), value in zip(batch.ids, batch.fields[field], strict=True)
    }, batch.digest


@pytest.mark.parametrize("together", [1, 7, 4096])
def test_each_file_is_a_sample(together, root, folder, monkeypatch):
    monkeypatch.setattr(plain_files, "OBJECTS_PER_SHARD", together)
    done = register(root, "files", folder, "texts")
    assert (len(done.version), done.others) == (30, 2)
    texts = {f"{i % 3}/f{i:02}": str(i) * (i % 4) for i in range(30) if i % 5}
    assert epoch_values(done.version, "txt")[0] == texts
    assert epoch_values(done.version, "cls", workers=0)[0] == {
        f"{i % 3}/f{i:02}": f"tensor({i})" for i in range(0, 30, 5)
    }
    assert verify(root, "texts", full=True).problems == []
    view = done.version.select("txt", where_present=True)
    assert len(view.where("nbytes = 6")) == sum(len(text) == 6 for text in texts.values())
    row = done.version.samples().collect().to_dicts()[0]
    assert (row["path"], row["raw_key"], row["modified_us"]) == (
        "0/f00.cls",
        "0/f00.cls",
        1_700_000_000_000_000,
    )


def test_file_that_was_written_again_is_named_by_itself(root, folder):
    version = register(root, "files", folder, "texts").version
    (folder / "1/f07.TXT").write_bytes(b"another")
    with refusal(Changed, what="size", within="/files/1/f07.TXT", given=7, accepted=3):
        epoch_values(version, "txt")
    assert {one.what for one in verify(root, "texts").problems} == {
        f"{folder}/1/f07.TXT has 7 bytes, registered were 3: register again, old samples keep their keys"
    }
    again = register(root, "files", folder, "texts")
    assert (again.new, again.replaced, again.same, len(again.version)) == (0, 1, 29, 30)
    assert epoch_values(again.version, "txt")[0]["1/f07"] == "another"


def test_files_of_a_bucket_cost_a_request_each(root, aws):
    """Registered they cost a listing, whatever there is of them; read, a request for each."""
    registered, read = [], []
    for n in (20, 60):
        url = f"s3://bucket/files-{next(_numbers)}"
        store = open_store(url, aws)
        for i in range(n):
            store.put(f"{i:03}.txt", f"text {i}".encode())
        traffic = Traffic()
        with count_requests(traffic):
            version = register(root, "files", url, f"texts-{n}").version
        registered.append(traffic.requests)
        plan = loader.plan({"p": version.select("txt")}, seed=1, global_batch=n)
        with loader.Loader(plan, workers=0) as batches:
            batch = next(iter(batches))
        assert sorted(map(str, batch.fields["txt"])) == sorted(f"text {i}" for i in range(n))
        read.append(batch.stats["requests"] - n)
    assert abs(registered[0] - registered[1]) <= 2
    assert read[0] == read[1]


@pytest.mark.parametrize("below", ["", "exports/first/"])
def test_table_of_an_export_is_no_sample(below, root, folder, tmp_path):
    """Any other file of that name is one."""
    version = register(root, "files", folder, "texts", without=["cls"]).version
    place = tmp_path / "place"
    assert export(version, "files", open_store(place / below)).failures == []
    (place / "mine").mkdir(parents=True)
    (place / "mine/metadata.parquet").write_bytes(b"a table of its own")
    again = register(root, "files", place, "again")
    assert again.version.fields == ("parquet", "txt")
    paths = set(again.version.samples().collect()["path"])
    assert "mine/metadata.parquet" in paths
    assert len(paths) == 1 + len(version)
    copied = import_place(root, "files", open_store(place), "copied")
    assert copied.samples == len(paths)
