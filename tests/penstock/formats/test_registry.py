"""Every format of the registry: one version for everyone, killed and repeated, damage and losses named.

A bucket gives what a folder gives. `test_laws.py` compares export and import, `tests/oracles` reads exports by the
format's own library. A format's own file holds only its oddities.
"""

import shutil
from collections import Counter, defaultdict
from contextlib import nullcontext

import numpy as np
import pytest

import loader
from fuzz.place_case import OPTIONS
from fuzz.places import PLACE_FORMATS, objects_of
from loader.dataset.root import root_over
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
from penstock.formats.registry import EXPORTED, FORMATS, REGISTERED, TABLES, exporter_named
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.mortal_store import PUTS, SIDES, Death, Killed, stop

REGISTRABLE = sorted({*REGISTERED, *TABLES, "lerobot"})
VERBS = [
    *(("register", name) for name in REGISTRABLE),
    *((verb, name) for verb in ("import", "shuffle") for name in PLACE_FORMATS),
]
SHARD_BYTES = 2**12
"""Of an import: several units, and units of several parts."""
IN_CI = {*VERBS[: len(REGISTRABLE)], *(("import", name) for name in PLACE_FORMATS if name not in REGISTRABLE)}
"""Each format once; nightly also shuffles, and imports what can be registered."""
verbs = pytest.mark.parametrize(
    ("verb", "name"),
    [pytest.param(*one, marks=() if one in IN_CI else pytest.mark.nightly) for one in VERBS],
)
LEAVE = {*REGISTERED, *TABLES} & EXPORTED
"""Formats whose registered objects leave as they came."""
MOST = defaultdict(lambda: 2, dict.fromkeys(("csv", "rlds", "tfrecord"), 1))
MOST |= dict.fromkeys(("hf", "lance", "megatron", "parquet"), 3) | {"rosbag": 4}
"""Format -> how often an object is read that is smaller than a request: docs/formats.md, Cost."""


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Formats are read in this process, and no heartbeat writes."""
    monkeypatch.setattr(run_import, "in_workers", lambda readable, *_: nullcontext(readable))
    monkeypatch.setattr("loader.dataset.leases.Heartbeat.start", lambda self: self)


def make(verb, name, place, root, workers=1, dataset="d", shard_bytes=SHARD_BYTES):
    """Register or import a place; return the version, and (new, unchanged, skipped) objects or parts."""
    options = OPTIONS.get(name, NO_OPTIONS)
    if verb != "register":
        how = {"shuffle": verb == "shuffle", "workers": workers, "shard_bytes": shard_bytes}
        done = import_place(root, name, open_store(place), dataset, options=options, **how)
        assert done.failures == []
        return root.open(dataset), (done.new, done.same, done.skipped)
    if name == "lerobot":
        done = register_lerobot(root, open_store(place), dataset, workers=workers)
    else:
        done = register(root, name, place, dataset, fields=options.fields)
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


@verbs
def test_killed_and_repeated_it_is_the_same_version(verb, name, format_places, tmp_path, at_scale):
    place, url = format_places / name, f"memory://{tmp_path.name}"
    expected, _ = make(verb, name, place, root_over(open_store(f"{url}/whole")))
    skipped = set()
    for k in range(1, 100, at_scale(5, 3)):
        store = open_store(f"{url}/{k}")
        try:
            make(verb, name, place, root_over(Death(k, SIDES[k % 2 == 0], PUTS, stop).of(store)))
        except Killed:
            version, (*_, parts) = make(verb, name, place, root_over(store))
            assert (version.id, version.number) == (expected.id, 1)
            skipped.add(parts)
        else:
            break
    assert 6 < k < 97
    assert verb == "register" or max(skipped) > 0


@pytest.mark.parametrize("name", [name for verb, name in VERBS if verb == "register"])
def test_registration_is_its_import_and_is_read_without_its_owner(name, format_places, tmp_path):
    """Sealed and adopted; an import of lerobot has videos, and not runs of packets."""
    place = tmp_path / "place"
    shutil.copytree(format_places / name, place, copy_function=shutil.copy2)
    root = loader.Root(tmp_path / "root")
    version, _ = make("register", name, place, root)
    copies, _ = make("import", name, place, loader.Root(tmp_path / "copies"))
    assert seal(version).failures == adopt(root, "d").failures == []
    shutil.rmtree(place)
    adopted = loader.Root(root.url).open("d")
    assert adopted.id == version.id
    for full in (False, True):
        digests = [content_digest(one, full=full) for one in (adopted, copies)]
        assert digests[0].failures == []
        assert (digests[0].digest == digests[1].digest) == (name != "lerobot")


def outcome(verb, name, place, root):
    """The errors of a place."""
    try:
        if verb == "register":
            make(verb, name, place, root)
            return []
        options = OPTIONS.get(name, NO_OPTIONS)
        return import_place(root, name, open_store(place), "d", options=options).failures
    except PenstockError as error:
        return [str(error)]


@pytest.mark.parametrize(
    ("verb", "name"), [one for one in VERBS if one[0] != "shuffle" and one[1] not in ("csv", "files")]
)
def test_object_that_is_cut_is_named(verb, name, format_places, tmp_path):
    """Files and CSV may end anywhere."""
    place = tmp_path / "place"
    shutil.copytree(format_places / name, place)
    companions = FORMATS[name].companions
    objects = {
        key: data for key, data in objects_of(place).items() if not (companions and companions.search(key))
    }
    key = max(objects, key=lambda one: len(objects[one]))
    (place / key).write_bytes(objects[key][: len(objects[key]) * 2 // 3 - 3])  # not behind a record
    root = loader.Root(tmp_path / "root")
    errors = outcome(verb, name, place, root)
    assert any(key in why for why in errors), errors
    assert root.datasets() == []


@pytest.mark.parametrize("name", sorted({*EXPORTED} - {"lerobot"}))  # episodes: exchange/test_lerobot.py
def test_losses_are_refused_by_name_and_reported(name, exported_root, tmp_path):
    version = loader.Root(exported_root).open("tokens" if name == "megatron" else "d")
    losses = [loss.name for loss in exporter_named(name).losses(select(version))]
    if losses:
        with pytest.raises(LossyExport) as refused:
            export(version, name, open_store(tmp_path / "out"))
        assert all(loss in str(refused.value) for loss in losses)
        assert not (tmp_path / "out").exists()
    done = export(version, name, open_store(tmp_path / "out"), lossy=True)
    assert ([one["name"] for one in done.lost], done.failures) == (losses, [])


@pytest.fixture(params=["s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def bucket(request, monkeypatch):
    """Name of an S3 server, which the environment names to whoever opens a place there."""
    server = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server["secret"])
    return request.param


def uploaded(place, url):
    store = open_store(url)
    for key, data in objects_of(place).items():
        store.put(key, data)
    return url


def trained(version):
    """Keys and values of the first batches."""
    field = next(name for name in version.fields if name.endswith(("txt", "npy", "u2", "i8", "cls", "json")))
    plan = loader.plan({"d": version.select(field, where_present=True)}, seed=3, global_batch=1)
    with loader.Loader(plan, workers=0, steps=3) as batches:
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
    objects = objects_of(place)
    url = uploaded(place, f"s3://bucket/{verb}-{name}")
    s3_answers.clear()
    there, _ = make(verb, name, url, loader.Root(tmp_path / "there"), shard_bytes=2**28)
    read = Counter()
    for method, path, nbytes in s3_answers:
        read[path.partition(f"/{verb}-{name}/")[2]] += nbytes if method == "GET" else 0
    here, _ = make(verb, name, str(place), loader.Root(tmp_path / "here"), shard_bytes=2**28)
    without = ("modified_us",) if name == "files" else ()  # objects were written later in the bucket
    digests = [content_digest(one, full=True, without=without) for one in (there, here)]
    assert digests[0] == digests[1]
    assert not digests[0].failures
    assert (len(there) > 1, trained(there)) == (True, trained(here))
    often = {
        key: read[key] / len(data) for key, data in objects.items() if read[key] > MOST[name] * len(data)
    }
    assert (often, any(read.values())) == ({}, bucket == "s3")
    if verb == "register" and name in LEAVE:  # law 3, object by object
        for version, out in ((there, f"{url}-out"), (here, tmp_path / "out")):
            assert export(version, name, open_store(out)).failures == []
            left = {key: data for key, data in stored(open_store(out)).items() if ".penstock" not in key}
            assert left == objects


def stored(store):
    return {info.key: bytes(store.get(info.key).data) for info in store.list()}


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
