"""Archives of which a registration reads every byte: they are sealed on the way, as `penstock seal` would."""

import itertools
import tarfile
from contextlib import closing
from unittest.mock import patch

import google_crc32c
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.shards.seals import SEALS
from loader.native import python
from loader.storage import open_store
from penstock.formats.archives import tar_headers
from penstock.formats.reading import object_file
from penstock.formats.reading.object_file import LOCAL_JUMP_BYTES as JUMP
from penstock.formats.reading.object_file import ForwardReader, Neighbours
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.formats.run_export import export
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars

_numbers = itertools.count()
KIB = 2**10


def seal_objects(root):
    return {info.key: root.store.get(info.key).data for info in root.store.list(SEALS)}


@pytest.fixture(params=["native", "python"])
def verbs(request):
    """The walk over headers in C where it was built, or in Python."""
    contents = tar_headers.tar_contents if request.param == "native" else python.tar_contents
    with patch.object(tar_headers, "tar_contents", contents):
        yield request.param


def walk_archive(store, *, small, sums):
    """(places, checksums, requests, bytes) of a walk whose requests are small, for an archive of some KiB."""
    sizes = {"FIRST_BYTES": 2 * KIB, "MOST_BYTES": 8 * KIB, "JUMP_BYTES": JUMP, "LOCAL_MOST_BYTES": 32 * KIB}
    neighbours, get, read = Neighbours(), store.get_range, list[int]()
    neighbours.are_small = small

    def get_range(key, offset, nbytes, etag):
        read.append(nbytes)
        return get(key, offset, nbytes, etag)

    with patch.multiple(object_file, **sizes), patch.object(store, "get_range", get_range):
        opened = ForwardReader(store, store.head("a.tar"), neighbours=neighbours)
        if not sums:
            opened._checksums = None
        with closing(opened):
            places = [place for one in tar_headers.walk(opened) for place in one.places]
            return places, list(opened.crcs()), len(read), sum(read)


@pytest.mark.parametrize("kind", ["disk", "memory"])
@given(
    members=st.lists(
        st.tuples(
            st.sampled_from(["a.jpg", "README", "x" * 120]),
            st.sampled_from([0, 1, 511, 512, 900, 3 * KIB, 7 * KIB, 15 * KIB, 20 * KIB, 40 * KIB]),
        ),
        max_size=12,
    ),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    small=st.booleans(),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(members=[("a.jpg", 15 * KIB)] * 12, format=tarfile.GNU_FORMAT, small=False)
@example(members=[("a.jpg", 900), ("a.jpg", 40 * KIB), ("a.jpg", 1)], format=tarfile.GNU_FORMAT, small=False)
def test_checksums_are_those_of_the_contents_and_cost_no_request(
    verbs, kind, members, format, small, tmp_path
):
    contents = [
        bytes([at + 1, at]) * (nbytes // 2) + b"!" * (nbytes % 2) for at, (_, nbytes) in enumerate(members)
    ]
    data = tars.tar_bytes(list(zip([name for name, _ in members], contents, strict=True)), format)
    store = open_store(f"memory://on-the-way-{next(_numbers)}" if kind == "memory" else tmp_path)
    if kind == "memory":
        store.put("a.tar", data)
    else:
        (tmp_path / "a.tar").write_bytes(data)
    places, crcs, requests, nbytes = walk_archive(store, small=small, sums=True)
    assert places[1::2] == [len(one) for one in contents]
    assert crcs in ([], [google_crc32c.value(one) for one in contents])
    is_plain = kind == "memory" or verbs == "python" or all(len(name) < 99 for name, _ in members)
    if is_plain and all(len(one) < JUMP for one in contents):
        assert len(crcs) == len(members)
    plain = walk_archive(store, small=small, sums=False)
    assert plain[:3] == (places, [], requests)
    assert nbytes <= plain[3] + JUMP * requests


@pytest.mark.parametrize("format", ["webdataset", "energon", "webdataset of ours"])
def test_registration_seals_as_penstock_seal_does(format, root, tmp_path):
    members = [
        *tars.number_samples(0, 3),
        ("d/x.JPG", b"abc"),
        ("d/x.txt", b""),
        ("README", b"no field"),
        ("z.cls", b"7"),
        ("z.txt", b"last"),
        ("z.json", b"{}"),
    ]
    place = tmp_path / "place"
    if format == "webdataset of ours":
        with loader.Root(tmp_path / "own") as own, own.write("d") as writer:
            for i in range(4):
                writer.add(f"k{i}", {"txt": str(i) * i, "cls": i}, metadata={"i": i})
        export(own.open("d"), "webdataset", open_store(place))
    else:
        tars.fill(place, {"a.tar": members, "b.tar": tars.number_samples(1, 3)})
    if format == "energon":
        (place / ".nv-meta").mkdir()
        (place / ".nv-meta/.info.json").write_text('{"shard_counts": {"a.tar": 5, "b.tar": 3}}')
    done = register(root, format.split()[0], place, "photos", without=["json"])
    assert done.sealed == len(done.version.parts.shard_rows()["path"].unique())
    seals = seal_objects(root)
    report = seal(done.version)
    assert (report.shards, report.skipped, report.nbytes) == (done.sealed, done.sealed, 0)
    for path in seals:
        (tmp_path / "root" / path).unlink()
    assert seal(done.version).failures == []
    assert seal_objects(root) == seals != {}


def test_what_was_jumped_over_is_left_for_penstock_seal_and_earlier_seals_stay(root, tmp_path):
    place = tmp_path / "place"
    tars.fill(place, {"a.tar": tars.number_samples(0, 4), "b.tar": [tars.JUMPED, *tars.number_samples(1, 4)]})
    first = register(root, "webdataset", place, "photos")
    assert first.sealed == len(seal_objects(root)) == 1
    tars.fill(place, {"c.tar": tars.number_samples(2, 4), "d.tar": [tars.JUMPED, *tars.number_samples(3, 4)]})
    before = seal_objects(root)
    second = register(root, "webdataset", place, "photos")
    assert second.sealed == 1
    assert before.items() <= seal_objects(root).items()
    report = seal(second.version)
    assert (report.shards, report.skipped, report.failures) == (4, 2, [])
    assert len(seal_objects(root)) == 4
    assert verify(root, "photos", full=True).unverified_nbytes == 0
