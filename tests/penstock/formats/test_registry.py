"""The suite of every format of the registry, over a place of each and the further forms of `builders.places`.

A place is one version for everyone, killed and repeated; a registration is its import; damage and losses are named;
an export is read by the format's library and comes back; a bucket gives what a folder gives. `test_golden_parts.py`
holds the bytes, `tests/assets/ingest/test_formats.py` runs the same places through the pipeline, `tests/oracles` asks
the libraries that are not installed here. A format's own file holds only its oddities.
"""

import io
import itertools
import json
import shutil
import signal
import string
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from fuzz.place_case import OPTIONS
from fuzz.places import PLACE_FORMATS, objects_of
from loader.dataset.root import root_in_store
from loader.dataset.shards.seals import SEALS
from loader.dataset.tables.columns import fits
from loader.errors import LossyExport, PenstockError
from loader.storage import open_store
from penstock.formats import run_import
from penstock.formats.content_digest import content_digest
from penstock.formats.exporter import select
from penstock.formats.importer import NO_OPTIONS
from penstock.formats.lerobot.lerobot_registered import register_lerobot
from penstock.formats.reading.object_file import ObjectFile
from penstock.formats.registration.adoption import adopt
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.formats.registry import EXPORTED, FORMATS, IMPORTED, REGISTERED, TABLES, exporter_named
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from penstock.upkeep.verify.root import verify_root
from penstock.upkeep.verify.version import verify
from tests.mortal_store import PUTS, SIDES, Death, Killed, killed_runs, stop
from tests.penstock.formats.builders.places import PACKED, PLACES, compress
from tests.penstock.formats.readers import READERS
from tests.penstock.formats.versions import (
    contents,
    digest,
    import_version,
    objects,
    place_objects,
    sample_contents,
)


def place_format(name):
    """The format of a place."""
    return name.partition(".")[0]


REGISTRABLE = sorted({*REGISTERED, *TABLES, "lerobot"})
VERBS = [
    *(("register", name) for name in REGISTRABLE),
    *((verb, name) for verb in ("import", "shuffle") for name in PLACE_FORMATS),
    *(("register", name) for name in PLACES if place_format(name) in REGISTRABLE and name != "hf.saved"),
    *((verb, name) for verb in ("import", "shuffle") for name in PLACES),
]
"""Verb and place: the name of a format, or `<format>.<form>`."""
SHARD_BYTES = 2**12
"""Of an import: several units, and units of several parts."""
IN_CI = {*VERBS} - {
    *(one for one in VERBS if one[0] == "shuffle" and one[1] != "webdataset.documents"),
    *(("import", name) for verb, name in VERBS if verb == "register" and name != "webdataset.documents"),
}
"""Each place once; nightly also shuffles, and imports what can be registered."""
OTHER_FORMS = {*PLACES} - {"hf.saved", "webdataset.documents"}
"""Forms that are killed as the plainest form of their format, and in nightly only."""
verbs = pytest.mark.parametrize(
    ("verb", "name"),
    [pytest.param(*one, marks=() if one in IN_CI else pytest.mark.nightly) for one in VERBS],
)
LEAVE = {*REGISTERED, *TABLES} & EXPORTED
"""Formats whose registered objects leave as they came."""
MOST = defaultdict(lambda: 2, dict.fromkeys(("csv", "rlds", "tfrecord"), 1))
MOST |= dict.fromkeys(("hf", "lance", "lerobot.joined", "megatron", "parquet"), 3)
MOST |= {"parquet.folders": 4, "rosbag": 4}
"""Format or place -> how often an object is read that is smaller than a request: docs/formats.md, Cost."""


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Formats are read in this process, and no heartbeat writes."""
    monkeypatch.setattr(run_import, "in_workers", lambda readable, *_: nullcontext(readable))
    monkeypatch.setattr("loader.dataset.log.heartbeats.Heartbeat.start", lambda self: self)


def make(verb, name, place, root, workers=1, dataset="d", shard_bytes=SHARD_BYTES):
    """Register or import a place; return the version, and (new, unchanged, skipped) objects or parts."""
    options, format = OPTIONS.get(name, NO_OPTIONS), place_format(name)
    if verb != "register":
        how = {"shuffle": verb == "shuffle", "workers": workers, "shard_bytes": shard_bytes}
        done = import_place(root, format, open_store(place), dataset, options=options, **how)
        assert done.failures == []
        return root.open(dataset), (done.new, done.same, done.skipped)
    if format == "lerobot":
        done = register_lerobot(root, open_store(place), dataset, workers=workers)
    else:
        done = register(root, format, place, dataset, fields=options.fields)
    return done.version, (done.new, done.same, 0)


@verbs
def test_place_is_one_version_for_everyone(verb, name, format_places, tmp_path):
    """Also where it was moved to, with any number of threads; again, it is unchanged; nothing is written there."""
    place, moved = format_places / name, tmp_path / "moved"
    before = objects_of(place)
    root = loader.Root(tmp_path / "a")
    version, (new, same, _) = make(verb, name, place, root)
    assert (new > 0, same) == (True, 0)
    shutil.copytree(place, moved, copy_function=shutil.copy2)
    elsewhere = loader.Root(tmp_path / "b")
    assert make(verb, name, moved, elsewhere, workers=5)[0].id == version.id
    again, (none, unchanged, _) = make(verb, name, place, root)
    assert (again.id, none, unchanged) == (version.id, 0, new)
    assert len(root.versions("d")) == 1
    assert make(verb, name, moved, elsewhere, dataset="others")[0].id != version.id
    assert objects_of(place) == before


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        pytest.param(*one, marks=() if one in IN_CI and one[1] not in OTHER_FORMS else pytest.mark.nightly)
        for one in VERBS
    ],
)
def test_killed_and_repeated_it_is_the_same_version(verb, name, format_places, tmp_path, at_scale):
    """Nothing is left beside the version's parts; seals are those of one run."""
    place, url = format_places / name, f"memory://{tmp_path.name}"
    whole, skipped = open_store(f"{url}/whole"), set()
    expected, _ = make(verb, name, place, root_in_store(whole))
    for k in range(1, 100, at_scale(5, 3)):
        store = open_store(f"{url}/{k}")
        try:
            make(verb, name, place, root_in_store(Death(k, SIDES[k % 2 == 0], PUTS, stop).of(store)))
        except Killed:
            version, (*_, parts) = make(verb, name, place, root_in_store(store))
            assert (version.id, version.number) == (expected.id, 1)
            assert folder_objects(store, SEALS) == folder_objects(whole, SEALS)
            if verb != "register":
                shards = {row["path"] for row in version.parts.shard_rows().to_pylist()}
                assert {key for key in folder_objects(store, "data/") if key.endswith(".tar")} == shards
            skipped.add(parts)
        else:
            break
    assert 6 < k < 97
    assert verb == "register" or max(skipped) > 0


def folder_objects(store, folder):
    """Key -> bytes of the objects in a folder of a store."""
    return {info.key: bytes(store.get(info.key).data) for info in store.list(folder)}


@pytest.mark.parametrize("name", ["files", "webdataset.documents"])
def test_sealing_and_adoption_that_were_killed_are_finished_by_a_second_run(name, format_places, tmp_path):
    whole = loader.Root(f"memory://{tmp_path.name}/whole")
    version, _ = make("register", name, format_places / name, whole)
    assert seal(version).failures == adopt(whole, "d").failures == []

    def register_place(at):
        store = open_store(f"memory://{tmp_path.name}/{at}")
        make("register", name, format_places / name, root_in_store(store))
        store.delete_many(folder_objects(store, SEALS))
        return store

    def run(store):
        root = root_in_store(store)
        assert seal(root.open("d")).failures == adopt(root, "d").failures == []

    n = 0
    for store, *_ in killed_runs(run, register_place, verbs=PUTS, at=(1, 3, 5)):
        run(store)
        for folder in (SEALS, "foreign/"):
            assert folder_objects(store, folder) == folder_objects(whole.store, folder)
        n += 1
    assert n == 6


@pytest.mark.parametrize("name", [name for verb, name in VERBS if verb == "register"])
def test_registration_is_its_import_and_is_read_without_its_owner(name, format_places, tmp_path):
    """Sealed and adopted; an import of lerobot has videos, and not runs of packets."""
    place = tmp_path / "place"
    shutil.copytree(format_places / name, place, copy_function=shutil.copy2)
    root, others = loader.Root(tmp_path / "root"), loader.Root(tmp_path / "copies")
    version, _ = make("register", name, place, root)
    copies, _ = make("import", name, place, others)
    assert verify(root, "d", full=True).problems == verify(others, "d", full=True).problems == []
    done, found = seal(version), objects_of(place)
    assert done.nbytes == 0 or place_format(name) not in {*TABLES, "lerobot"}  # their checksums are known
    assert done.failures == adopt(root, "d").failures == []
    shutil.rmtree(place)
    adopted = loader.Root(root.url).open("d")
    report = verify_root(root, full=True)
    assert (adopted.id, report.problems, report.n_foreign) == (version.id, [], 0)
    shuffled, _ = make("shuffle", name, format_places / name, loader.Root(tmp_path / "shuffled"))
    for full in (False, True):
        assert digest(shuffled, full=full) == digest(copies, full=full)
        assert (digest(adopted, full=full) == digest(copies, full=full)) == (place_format(name) != "lerobot")
    leaving = {"webdataset.documents": adopted, "megatron.pairs": copies}.get(name)
    if leaving is not None:  # adopted archives leave as they came, and imported documents
        without = ["raw_etag"] if leaving is copies else []
        assert (
            export(leaving, place_format(name), open_store(tmp_path / "out"), without=without).failures == []
        )
        assert place_objects(tmp_path / "out") == found


@pytest.mark.parametrize(
    ("place", "how"),
    [
        *(("webdataset.documents", how) for how in PACKED["webdataset"]),
        *(("mds.arrays", how) for how in PACKED["mds"]),
        *(("litdata.leaves", how) for how in PACKED["litdata"]),
        ("mds.splits", "gz"),
        ("litdata.splits", "chunk"),
        ("litdata.table", "table"),
    ],
)
def test_compressed_format_gives_the_samples_of_the_plain_one(place, how, format_places, tmp_path):
    """Forward, from streams one behind the other, in parts of several objects; shuffled too."""
    format, plain = (
        place_format(place),
        sample_contents(import_version(place_format(place), format_places / place)),
    )
    packed = format_places / f"{format}-compressed.{how}"
    if how != "table":
        packed = compress(format, how, format_places / place, tmp_path / "packed")
    assert len(plain) > 6
    for shuffle in (False, True):
        version = import_version(f"{format}-compressed", packed, shuffle=shuffle, shard_bytes=700)
        assert sample_contents(version) == plain


def outcome(verb, name, place, root):
    """The errors of a place."""
    try:
        if verb == "register":
            make(verb, name, place, root)
            return []
        options = OPTIONS.get(name, NO_OPTIONS)
        return import_place(
            root, place_format(name), open_store(place), "d", options=options, workers=1
        ).failures
    except PenstockError as error:
        return [str(error)]


@pytest.mark.parametrize(
    ("verb", "name"), [one for one in VERBS if one[0] != "shuffle" and one[1] not in ("csv", "files")]
)
def test_object_that_is_cut_is_named(verb, name, format_places, tmp_path):
    """Files and CSV may end anywhere."""
    place = tmp_path / "place"
    shutil.copytree(format_places / name, place)
    companions = FORMATS[place_format(name)].companions
    objects = {
        key: data for key, data in objects_of(place).items() if not (companions and companions.search(key))
    }
    key = max(objects, key=lambda one: len(objects[one]))
    (place / key).write_bytes(objects[key][: len(objects[key]) * 2 // 3 - 3])  # not behind a record
    root = loader.Root(tmp_path / "root")
    errors = outcome(verb, name, place, root)
    assert any(key in why for why in errors), errors
    assert root.datasets() == []


def change_bytes(data, changes, cut):
    """Bytes with some replaced, and cut. changes: where, as a share, and by what."""
    out = bytearray(data)
    for share, byte in changes:
        out[int(share * (len(out) - 1))] = byte
    return bytes(out[: int(cut * len(out))])


COUNTED = {"energon", "litdata", "litdata-compressed", "mds", "mds-compressed", "megatron"}
"""Formats whose indexes count their samples."""
shares = st.floats(0, 1)


@cache
def sample_counts(places):
    """Place -> its samples, of formats whose indexes count them."""
    names = [name for name in (*PLACE_FORMATS, *PLACES) if place_format(name) in COUNTED]
    return {name: len(import_version(place_format(name), places / name)) for name in names}


@pytest.mark.parametrize("name", sorted({*PLACE_FORMATS, *PLACES} - {"lance", "robomimic"}))
@given(
    one=shares,
    changes=st.lists(st.tuples(shares, st.integers(0, 255)), max_size=4),
    cut=st.just(1.0) | shares,
)
@settings(max_examples=12, deadline=None)
def test_object_damaged_anywhere_is_named_or_read_alike_by_both_verbs(
    name, one, changes, cut, format_places, tmp_path_factory
):
    """Libraries of Lance and HDF5 may crash: they read in processes of their own, which `fuzz` damages."""
    place, format = tmp_path_factory.mktemp("damaged"), place_format(name)
    shutil.copytree(format_places / name, place, dirs_exist_ok=True)
    found = objects_of(place)
    key = sorted(found)[int(one * (len(found) - 1))]
    (place / key).write_bytes(change_bytes(found[key], changes, cut))
    companions = [
        one for one in found if FORMATS[format].companions and FORMATS[format].companions.search(one)
    ]
    sound = sample_counts(format_places).get(name)
    digests = []
    for verb in ("register", "import") if format in {*REGISTERED, "arrow"} else ("import",):
        root = root_in_store(open_store(f"memory://damaged-{next(NUMBER)}"))
        errors = outcome(verb, name, place, root)
        assert all(any(one in why for one in (key, *companions, "hold no samples")) for why in errors), errors
        if root.datasets():
            assert format not in COUNTED or len(root.open("d")) == sound
            digests.append(digest(root.open("d")))
    assert len({*digests}) < 2


@pytest.mark.parametrize("name", sorted({*EXPORTED} - {"lerobot"}))  # episodes: exchange/test_lerobot.py
def test_losses_are_refused_by_name_and_reported(name, export_root, tmp_path):
    version = loader.Root(export_root).open("tokens" if name == "megatron" else "d")
    losses = [loss.name for loss in exporter_named(name).losses(select(version))]
    if losses:
        with pytest.raises(LossyExport) as refused:
            export(version, name, open_store(tmp_path / "out"))
        assert all(loss in str(refused.value) for loss in losses)
        assert not (tmp_path / "out").exists()
    done = export(version, name, open_store(tmp_path / "out"), lossy=True)
    assert ([one["name"] for one in done.lost], done.failures) == (losses, [])


@pytest.fixture(scope="session")
def exportable(export_root, format_places, tmp_path_factory):
    """exportable(name) -> a version with all that an export has to keep apart, of tokens or of episodes."""
    root = loader.Root(tmp_path_factory.mktemp("episodes"))
    own = {
        "lerobot": import_version("lerobot", format_places / "lerobot", root),
        "megatron": open_version(export_root, "tokens"),
    }
    return lambda name: own.get(name) or open_version(export_root, "d")


def open_version(url, name):
    return loader.Root(url).open(name)


every_export = pytest.mark.parametrize("name", sorted(EXPORTED))


@every_export
def test_export_comes_back_as_it_was(name, exportable, tmp_path):
    version = exportable(name)
    done = export(version, name, open_store(tmp_path / "out"))
    found = place_objects(tmp_path / "out")
    assert (done.samples, done.failures, done.lost) == (len(version), [], [])
    assert (done.objects, done.nbytes) == (len(found), sum(map(len, found.values())))
    if name == "files":
        return  # each of them is a sample: a library reads them below
    back = import_version(name, tmp_path / "out", tmp_path / "root")
    assert digest(back) == digest(version)


@pytest.mark.parametrize("name", READERS)
def test_formats_library_finds_what_the_version_has(name, exportable, tmp_path):
    """webdataset's package, DuckDB, and Python's own files; tests/oracles asks the others."""
    version = exportable(name)
    export(version, name, open_store(tmp_path / "whole"))
    expected = contents(version)
    assert READERS[name](objects(open_store(tmp_path / "whole"))) == expected
    assert len(expected) == 11


@pytest.mark.parametrize("name", sorted(EXPORTED - {"lerobot", "megatron"}))
def test_export_of_some_samples_without_some_names(name, exportable, tmp_path):
    names, version = ["jpg", "kind", "score"], exportable(name)
    export(version, name, open_store(tmp_path / "out"), where="w > 4", without=names)
    expected = {
        key: tuple({name: one for name, one in some.items() if name not in names} for some in sample)
        for key, sample in contents(version).items()
        if sample[1]["w"] > 4
    }
    assert len(expected) == 7
    if name in READERS:
        assert READERS[name](objects(open_store(tmp_path / "out"))) == expected
    else:
        own = {key: (fields, {**columns}) for key, (fields, columns) in expected.items()}
        assert without_source(
            sample_contents(import_version(name, tmp_path / "out", tmp_path / "root"))
        ) == without_source(own)


def without_source(samples):
    """Samples without their provenance."""
    return {
        key: (fields, {name: one for name, one in columns.items() if name not in ("source_key", "split")})
        for key, (fields, columns) in samples.items()
    }


@every_export
def test_export_killed_at_every_write_is_finished_by_a_second_run(
    name, exportable, tmp_path, monkeypatch, at_scale
):
    """It ends in the same objects, none was half written, and no unit that was noted is written again.

    In CI at every third write.
    """
    monkeypatch.setattr("penstock.formats.lerobot.lerobot_export.FILE_BYTES", 1)
    version, url = exportable(name), f"memory://{tmp_path.name}"

    def run(store):
        return export(version, name, store, workers=1)

    run(open_store(f"{url}/whole"))
    expected, n = objects(open_store(f"{url}/whole")), 0
    units = count_units(expected)
    every = at_scale(3, 1)
    at = range(1, 99, every)
    for store, _, when in killed_runs(run, lambda at: open_store(f"{url}/{at}"), verbs=PUTS, at=at):
        half, n = objects(store), n + 1
        assert half.items() <= expected.items()
        assert (".penstock/export.json" in half) <= (when == "after")
        again = run(store)
        assert (again.skipped > 0) == (count_units(half) > 0)
        assert count_units(half) < units or again.skipped >= units
        assert objects(store) == expected
    assert n == 2 * -(-len(expected) // every)


def count_units(found):
    return sum(key.startswith(".penstock/units/") for key in found)


SIGKILLED = """
import sys
import loader
from loader.storage import open_store
from penstock.formats.run_export import export
sys.path.insert(0, {here!r})
from tests.mortal_store import PUTS, Death
export(loader.Root({root!r}).open("d"), "webdataset", Death({k}, verbs=PUTS).of(open_store({out!r})))
"""


def test_export_that_sigkill_ended_is_finished_by_a_second_run(export_root, exportable, tmp_path):
    """Of several units at once."""
    version = exportable("webdataset")
    export(version, "webdataset", open_store(tmp_path / "whole"))
    expected = objects(open_store(tmp_path / "whole"))
    for k in (2, 4):
        out = str(tmp_path / str(k))
        code = SIGKILLED.format(here=str(Path(__file__).parents[3]), root=export_root, out=out, k=k)
        assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
        assert objects(open_store(out)).items() < expected.items()
        export(version, "webdataset", open_store(out))
        assert objects(open_store(out)) == expected


@pytest.fixture(params=["s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def bucket(request, monkeypatch):
    """Name of an S3 server, which the environment names to whoever opens a place there."""
    server = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server["secret"])
    return request.param


def upload(place, url):
    store = open_store(url)
    for key, data in objects_of(place).items():
        store.put(key, data)
    return url


def first_batches(version):
    """Keys and values of the first batches."""
    known = [name for name in version.fields if name.endswith(("txt", "npy", "u2", "i8", "cls", "json"))]
    field = (known or version.fields)[0]
    plan = loader.plan({"d": version.select(field, where_present=True)}, seed=3, global_batch=1)
    with loader.Loader(plan, decode=bool(known), workers=0, steps=3) as batches:
        return [(batch.ids, [repr(one) for one in batch[field]]) for batch in batches]


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        pytest.param(*one, marks=() if one in IN_CI else pytest.mark.nightly)
        for one in VERBS
        if one[0] != "shuffle"
    ],
)
def test_bucket_gives_what_the_folder_gives(verb, name, format_places, bucket, tmp_path, s3_answers):
    place = tmp_path / "place"  # without the notes by which an export comes back as it was
    shutil.copytree(format_places / name, place, ignore=shutil.ignore_patterns(".penstock"))
    found = objects_of(place)
    url = upload(place, f"s3://bucket/{verb}-{name}")
    s3_answers.clear()
    there, _ = make(verb, name, url, loader.Root(tmp_path / "there"), shard_bytes=2**28)
    read = Counter()
    for method, path, nbytes in s3_answers:
        read[path.partition(f"/{verb}-{name}/")[2]] += nbytes if method == "GET" else 0
    here, _ = make(verb, name, str(place), loader.Root(tmp_path / "here"), shard_bytes=2**28)
    if verb == "import":
        assert shard_bytes(there) == shard_bytes(here)
    without = ("modified_us",) if name == "files" else ()  # objects were written later in the bucket
    digests = [content_digest(one, full=True, without=without) for one in (there, here)]
    assert digests[0] == digests[1]
    assert not digests[0].failures
    assert (len(there) > 1, first_batches(there)) == (True, first_batches(here))
    often = {
        key: read[key] / len(data)
        for key, data in found.items()
        if read[key] > MOST[name if name in MOST else place_format(name)] * len(data)
    }
    assert (often, any(read.values())) == ({}, bucket == "s3")
    if verb == "register" and place_format(name) in LEAVE:  # law 3, object by object
        for version, out in ((there, f"{url}-out"), (here, tmp_path / "out")):
            assert export(version, place_format(name), open_store(out)).failures == []
            assert place_objects(out) == found


def shard_bytes(version):
    """The bytes of the shards of an import."""
    return {version.store.get(row["path"]).data for row in version.parts.shard_rows().to_pylist()}


def test_scattered_reads_of_an_object_cost_few_bytes_more(s3, s3_answers):
    store, data = open_store("s3://bucket/scattered", s3), np.random.default_rng(1).bytes(12 * 2**20)
    store.put("a", data)
    (info,) = store.list()
    s3_answers.clear()
    starts = [0, 6 * 2**20, 88, *(3 * 2**20 + 2**15 * n for n in range(48)), 6 * 2**20 + 88, 512]
    with ObjectFile(store, info, scattered=True) as file:
        for start in starts:
            file.seek(start)
            assert file.read(2**15) == data[start : start + 2**15]
    read = [nbytes for method, _, nbytes in s3_answers if method == "GET"]
    assert (len(read), sum(read)) == (4, 2**21)


BOTH = sorted((EXPORTED & (REGISTERED | IMPORTED)) - {"files", "lerobot", "megatron"})
"""Formats that are written and read as samples of any kind."""
NUMBER = itertools.count()

words = st.text(
    st.characters(codec="utf-8", exclude_categories=("C",), exclude_characters="./"), min_size=1, max_size=6
)
keys = st.lists(words, min_size=1, max_size=3).map("/".join).filter(lambda key: not key.startswith("__"))
names = st.sampled_from(
    ["jpg", "txt", "json", "cam.mp4", "x_y-1.bin", "tokens.u2", "a.b.f4", "a_b.f4", "npy"]
)
instants = st.integers(0, 2**50).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
columns = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "score": st.floats(-1e100, 1e100),
    "kept": st.booleans(),
    "caption": st.text(st.characters(codec="utf-8"), max_size=8),
    "at": instants,
    "tags": st.lists(st.text(string.ascii_letters, max_size=3), max_size=3),
    "times": st.lists(instants, max_size=2),
}
"""Metadata column -> its values."""


def value(name):
    """Bytes that any format can hold in a field of this name."""
    if name == "txt":
        return st.text(st.characters(codec="utf-8"), max_size=20).map(str.encode)
    if name == "json":
        return st.integers().map(json.dumps).map(str.encode)
    if name == "npy":
        return st.lists(st.integers(-9, 9), max_size=3).map(lambda list_: npy(list_))
    width = int(name[-1]) if name[-2:-1] in "uif" and name[-1] in "1248" else 1
    return st.binary(max_size=700).map(lambda data: data[: len(data) // width * width])


def npy(values):
    out = io.BytesIO()
    np.save(out, np.array(values, np.int32))
    return out.getvalue()


@st.composite
def versions(draw):
    """Runs of samples, (key, fields, metadata, source): all have the first fields, some runs have one more."""
    every = sorted(draw(st.sets(names, min_size=1, max_size=3)))
    more = draw(names.filter(lambda name: name not in every) | st.none())
    told = sorted(draw(st.sets(st.sampled_from(sorted(columns)))))
    found = draw(st.lists(keys, min_size=1, max_size=7, unique=True))
    cut, runs = draw(st.integers(1, len(found))), []
    for some, fields in ((found[:cut], every), (found[cut:], [*every, more] if more else every)):
        runs.append(
            [
                (
                    key,
                    {name: draw(value(name)) for name in fields},
                    {name: draw(st.none() | columns[name]) for name in told},
                    {"split": draw(st.sampled_from(["train", "val"]))},
                )
                for key in some
            ]
        )
    return [run for run in runs if run]


def fresh():
    """An empty store."""
    return open_store(f"memory://laws-{next(NUMBER)}")


def make_version(runs):
    """d@n of a root in memory: a part for each run, fields that some lack in a group of their own."""
    root = root_in_store(fresh())
    every = set.intersection(*(set(fields) for run in runs for _, fields, *_ in run))
    for run in runs:
        groups = {name: "media" if name in every else "more" for _, fields, *_ in run for name in fields}
        with root.write("d", groups=groups) as writer:
            for key, fields, metadata, source in run:
                writer.add(key, fields, metadata=metadata, source=source)
    return root.open("d")


@pytest.mark.parametrize("name", BOTH)
@given(runs=versions())
@example(
    runs=[
        [("a", {"jpg": b""}, {}, {"split": "val"})],
        [("b", {"jpg": b"", "json": b"0"}, {}, {"split": "val"})],
    ]
)
@settings(max_examples=12, deadline=None)
def test_laws_1_2_and_3_content_leaves_and_comes_back(name, runs, tmp_path_factory):
    """digest(import(F, export(v, F))) = digest(v), digest(register(F, x)) = digest(import(F, x)), and x leaves as x."""
    version = make_version(runs)
    place = open_store(tmp_path_factory.mktemp("place"))
    done = export(version, name, place, workers=1)
    assert (done.failures, done.lost) == ([], [])
    back = import_version(name, place, root_in_store(fresh()), workers=1)
    assert digest(back, full=False) == digest(version, full=False)
    found = [one.samples().select("key", "split").collect().sort("key").to_dicts() for one in (back, version)]
    assert found[0] == found[1]
    kinds = [
        {column: told["type"] for column, told in one.manifest["columns"].items() if column in columns}
        for one in (back, version)
    ]
    assert all(
        fits(kinds[1][column], kind) or fits(kind, kinds[1][column]) for column, kind in kinds[0].items()
    )
    if name not in LEAVE:
        return  # it cannot be registered
    registered = register(root_in_store(fresh()), name, place.url, "d").version
    assert digest(registered) == digest(version)
    out = open_store(tmp_path_factory.mktemp("out"))
    again = export(registered, name, out, workers=1)
    assert (again.failures, again.lost, again.samples) == ([], [], len(version))
    assert place_objects(out) == place_objects(place)  # law 3: export(register(F, x), F) is x
    assert digest(import_version(name, out, root_in_store(fresh()), workers=1), full=False) == digest(
        version, full=False
    )
