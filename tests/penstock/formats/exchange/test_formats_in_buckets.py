"""Every format in a bucket: what is registered and imported there is what a folder gives, sample for sample."""

import shutil
from collections import Counter, defaultdict

import numpy as np
import pytest

import loader
from fuzz.place_case import OPTIONS
from fuzz.places import PLACE_FORMATS, objects_of, write_places
from loader.storage import open_store
from penstock.formats import EXPORTED, REGISTERED, TABLES
from penstock.formats.content_digest import content_digest
from penstock.formats.reading.object_file import ObjectFile
from penstock.formats.run_export import export

REGISTRABLE = sorted({*REGISTERED, *TABLES, "lerobot"})
LEAVE = {*REGISTERED, *TABLES} & EXPORTED
"""Formats whose registered objects leave as they came."""
TIMES = {"files": ("modified_us",)}
"""Columns that tell of the objects themselves, which were written later in a bucket."""
MOST = defaultdict(lambda: 2, dict.fromkeys(("csv", "rlds", "tfrecord"), 1))
MOST |= dict.fromkeys(("hf", "lance", "megatron", "parquet"), 3) | {"rosbag": 4}
"""Format -> how often an object is read that is smaller than a request: docs/formats.md, Cost."""


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """Format -> folder of a place, without the notes by which an export comes back as it was."""
    made = write_places(tmp_path_factory.mktemp("formats"))
    for place in made:
        shutil.rmtree(place / ".penstock", ignore_errors=True)
    return {place.name: place for place in made}


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


def made(cli, verb, format, url, root):
    """The version that a verb makes of a place."""
    fields = OPTIONS[format].fields if format in OPTIONS else {}
    options = [word for name, ending in fields.items() for word in ("--field", f"{name}={ending}")]
    done = cli(verb, format, url, "d", *options, "--json", root=root)
    assert done.code == 0, done.err + done.out
    return loader.Root(root).open(done.json["name"])


def trained(version):
    """Keys and values of the first batches."""
    field = next(name for name in version.fields if name.endswith(("txt", "npy", "u2", "i8", "cls", "json")))
    plan = loader.plan({"d": version.select(field, where_present=True)}, seed=3, global_batch=1)
    with loader.Loader(plan, workers=0, steps=3) as batches:
        return [(batch.ids, [repr(one) for one in batch[field]]) for batch in batches]


@pytest.mark.parametrize(
    ("verb", "format"),
    [*(("register", one) for one in REGISTRABLE), *(("import", one) for one in PLACE_FORMATS)],
)
def test_a_bucket_gives_what_the_folder_gives(verb, format, places, bucket, cli, tmp_path, s3_answers):
    url = uploaded(places[format], f"s3://bucket/{verb}-{format}")
    s3_answers.clear()
    there = made(cli, verb, format, url, tmp_path / "there")
    read = Counter()
    for method, path, nbytes in s3_answers:
        read[path.partition(f"/{verb}-{format}/")[2]] += nbytes if method == "GET" else 0
    here = made(cli, verb, format, places[format], tmp_path / "here")
    without = TIMES.get(format, ())
    digests = [content_digest(one, full=True, without=without) for one in (there, here)]
    assert digests[0] == digests[1]
    assert not digests[0].failures
    assert (len(there) > 1, trained(there)) == (True, trained(here))
    sizes = {key: len(data) for key, data in objects_of(places[format]).items()}
    often = {key: read[key] / nbytes for key, nbytes in sizes.items() if read[key] > MOST[format] * nbytes}
    assert (often, any(read.values())) == ({}, bucket == "s3")
    if verb == "register" and format in LEAVE:  # law 3, object by object
        for version, out in ((there, f"{url}-out"), (here, tmp_path / "out")):
            assert export(version, format, open_store(out)).failures == []
            store = open_store(out)
            found = {info.key: bytes(store.get(info.key).data) for info in store.list()}
            assert {key: found[key] for key in found if ".penstock" not in key} == objects_of(places[format])


def test_a_reader_that_goes_to_and_fro_reads_little_more_than_it_wants(s3, s3_answers):
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
