"""Registered bytes that were read and summed once: readers are held to the sums from then on."""

import os
import re

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.seals import SEALS, parse_seal, seal_bytes, seal_path
from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts
from loader.errors import Corrupt
from loader.storage import open_store
from penstock.cli import main
from penstock.denied.find import find
from penstock.formats.content_digest import content_digest
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc.collector import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.takedown.takedown_run import keys_tables
from penstock.upkeep.verify.root import verify_root
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars
from tests.refusals import refusal

DAY_US = 86_400 * 10**6


def make_plan(version):
    return loader.plan({"p": version.select("txt", "cls")}, seed=3, global_batch=16)


def steps(version, n=5):
    with loader.Loader(make_plan(version)) as batches:
        return [
            (b.digest, b.stats.get("unverified_bytes", 0)) for _, b in zip(range(n), batches, strict=False)
        ]


def seal_objects(root):
    return {info.key: root.store.get(info.key).data for info in root.store.list(SEALS)}


def damage(version, path, field="txt", row=3):
    """Flip a bit of a field in place, with the file's size and time as they were."""
    shard = next(s for s in version.parts.shard_rows().to_pylist() if s["path"].endswith(path.name))
    at = IndexFile(version.store, IndexPlace.of(shard)).read_group(0).offset[field][row]
    told = path.stat()
    with path.open("r+b") as file:
        file.seek(int(at))
        was = file.read(1)[0]
        file.seek(int(at))
        file.write(bytes([was ^ 1]))
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    return int(at)


def test_digests_and_the_id_stay_and_nothing_is_unverified(root, three):
    version = register(root, "webdataset", three, "photos").version
    before, unsealed = steps(version), content_digest(version)
    assert unsealed.digest == ""
    for said in ("penstock seal photos@1", "penstock digest photos@1 --full, which reads all bytes"):
        assert said in unsealed.failures[0]
    done = seal(version)
    assert (done.shards, done.skipped, done.failures) == (3, 0, [])
    again = root.open("photos")
    after = steps(again)
    assert again.id == version.id
    assert [digest for digest, _ in after] == [digest for digest, _ in before]
    assert all(nbytes for _, nbytes in before)
    assert not any(nbytes for _, nbytes in after)


def test_damaged_byte_is_named_at_every_read(root, three):
    version = register(root, "webdataset", three, "photos").version
    seal(version)
    at = damage(version, three / "001.tar")
    again = root.open("photos")
    addresses = again.address(range(len(again)), ["txt", "cls"])
    with refusal(Corrupt, what="txt", within="sample '1/0003'") as caught:
        read_fields(again.shard_store, addresses)
    assert f"[{at}:" in caught.value.where
    assert len(verify(root, "photos", full=True).problems) == 1
    assert verify(root, "photos", full=True).unverified_nbytes == 0


def test_archive_with_the_same_index_and_other_bytes_has_a_seal_of_its_own(root, three):
    """Its keys, offsets and lengths are as before, so its index has the same bytes."""
    version = register(root, "webdataset", three, "photos").version
    seal(version)
    (three / "001.tar").write_bytes(
        tars.tar_bytes(
            [(name, bytes(reversed(data))) for name, data in [tars.JUMPED, *tars.number_samples(1, 40)]]
        )
    )
    tars.set_time(three / "001.tar", 1_700_000_099)
    newest = register(root, "webdataset", three, "photos").version
    footers = newest.parts.shard_rows()["index_footer_sha256"].to_pylist()
    assert len(set(footers)) == len(footers) - 1
    assert sum(nbytes for _, nbytes in steps(newest)) > 0
    done = seal(newest)
    assert (done.shards, done.skipped) == (3, 2)
    assert not any(nbytes for _, nbytes in steps(root.open("photos")))


def test_changed_archive_is_named_and_the_others_are_sealed(root, three, capsys):
    register(root, "webdataset", three, "photos")
    (three / "001.tar").write_bytes(tars.tar_bytes(tars.number_samples(1, 39)))
    assert main(["seal", "photos", "--root", root.url]) == 1
    said = capsys.readouterr().out
    assert re.search(r"001\.tar has [\d,]+ bytes, registered were", said)
    assert len(seal_objects(root)) == 2
    register(root, "webdataset", three, "photos")
    assert main(["seal", "photos", "--root", root.url]) == 0
    assert len(seal_objects(root)) == 3


def test_of_files_in_one_index_one_that_is_gone_stops_none_that_stay(root, tmp_path):
    place = tmp_path / "files"
    place.mkdir()
    for k in range(6):
        (place / f"{k}.txt").write_text(f"text {k}")
    register(root, "files", place, "texts")
    (place / "4.txt").unlink()
    newest = register(root, "files", place, "texts").version
    assert seal(newest).failures == []
    assert content_digest(root.open("texts")).samples == 5


def test_seal_costs_one_request_per_index_there_or_not(root, three):
    version = register(root, "webdataset", three, "photos").version

    def requests():
        again = root.open("photos")
        asked = []
        get = again.store.get
        again.store.get = lambda key, *more, **how: asked.append(key) or get(key, *more, **how)
        try:
            for _ in range(2):
                again.address(range(len(again)), ["txt", "cls"])
        finally:
            again.store.get = get
        return [key for key in asked if key.startswith(SEALS)]

    missing = requests()
    seal(version)
    assert sorted(missing) == sorted(set(missing)) == sorted(requests()) == sorted(seal_objects(root))


def test_collector_keeps_seals_that_a_version_needs_and_deletes_the_others(root, three):
    version = register(root, "webdataset", three, "photos").version
    seal(version)
    (three / "001.tar").write_bytes(tars.tar_bytes(tars.number_samples(1, 39)))
    newest = register(root, "webdataset", three, "photos").version
    seal(newest)
    assert len(seal_objects(root)) == 4
    del version
    root.retire("photos@1", reason="old")
    options = Options(grace_s=0)
    collect(root, options, apply=True, now_us=DAY_US)
    collect(root, options, apply=True, now_us=99 * DAY_US)
    needed = {IndexPlace.of(row).seal for row in newest.parts.shard_rows().to_pylist()}
    assert set(seal_objects(root)) == needed
    root.retire("photos@2", reason="old")
    del newest
    for day in (199, 299, 399):
        collect(root, options, apply=True, now_us=day * DAY_US)
    assert seal_objects(root) == {}


def test_mirror_has_the_seals(root, three, tmp_path):
    seal(register(root, "webdataset", three, "photos").version)
    migrate(root, open_store(str(tmp_path / "mirror")), Pace())
    mirror = loader.Root(tmp_path / "mirror")
    assert seal_objects(mirror) == seal_objects(root)
    assert not any(nbytes for _, nbytes in steps(mirror.open("photos")))


def test_root_with_seals_verifies_and_a_damaged_seal_is_named(root, three):
    version = register(root, "webdataset", three, "photos").version
    seal(version)
    report = verify_root(root)
    assert (report.problems, report.n_foreign) == ([], 0)
    key, data = next(iter(seal_objects(root).items()))
    place = IndexPlace.of(version.parts.shard_rows().to_pylist()[0])
    other = next(path for path in seal_objects(root) if path != key)
    root.store.put(key, seal_objects(root)[other])
    assert [one.address for one in verify_root(root).problems] == [key]
    with refusal(Corrupt, what="path", where=key, given=other):
        parse_seal(root.store.get(key).data, key, key)
    root.store.put(key, data)
    assert place.seal in seal_objects(root)


def test_takedown_looks_for_the_seal_and_the_next_version_is_sealed_by_its_index(root, three):
    version = register(root, "webdataset", three, "photos").version
    seal(version)
    told = ["--by", "a", "--reason", "asked", "--root", root.url]
    assert main(["takedown", "request", "--dataset", "photos", "--sample", "1/0003", *told]) == 0
    n = root.state.denies[-1].n
    found = find(keys_tables(root, root.state.denies[-1], None), "photos")
    mine = [row for row in version.parts.shard_rows().to_pylist() if row["path"].endswith("001.tar")]
    paths = {place["path"] for place in found.places if place["check"] == "absent"}
    assert {IndexPlace.of(row).seal for row in mine} <= paths
    del version
    assert main(["takedown", "run", str(n), "--apply", "--root", root.url]) in (0, 1)
    assert not any(nbytes for _, nbytes in steps(root.open("photos"), 7))


@given(st.lists(st.integers(-1, 2**32 - 1), max_size=50))
def test_seal_holds_its_input(crcs):
    path = seal_path("foreign/p/a.tar", "0" * 64)
    data = seal_bytes(path, {"a": np.array(crcs, np.int64), "b": np.array(crcs[::-1], np.int64)})
    found = parse_seal(data, path, path)
    assert {name: column.tolist() for name, column in found.items()} == {"a": crcs, "b": crcs[::-1]}
    table = parse_table(data, path)
    edited = table.set_column(
        0, "a_crc32c", pa.array([7, *crcs[1:]], pa.int64()) if crcs else table["a_crc32c"]
    )
    told = table_facts(table)
    data = table_bytes(edited, "seal", facts={name: told[name] for name in ("path", "content_sha256")})
    if crcs and crcs[0] != 7:
        with refusal(Corrupt, what="SHA-256 of the checksums", where=path):
            parse_seal(data, path, path)
