"""A store that lies is named, probe by probe; nothing is published to one whose creates are not conditional."""

import pytest

import loader
from loader.errors import InvalidStore
from loader.storage import Blob, open_store
from penstock.upkeep.doctor import store_probes
from penstock.upkeep.doctor.store_probes import Scratch, creates, listing
from tests.proxy_stores import ProxyStore
from tests.refusals import refusal


def levels(found):
    return {one.check: one.level for one in found}


def few(scratch):
    return listing(scratch, 10)


HONEST = {
    creates: {"create-only": "ok", "creates at once": "ok"},
    store_probes.read_after_write: {"read after write": "ok", "delete": "ok"},
    store_probes.etags: {"etags": "ok"},
    store_probes.ranges: {"ranges": "ok"},
    store_probes.checksums: {"checksums": "ok"},
    store_probes.copies: {"copies": "ok"},
    few: {"listing": "ok"},
}
LIES = [
    ("replaces", creates, "create-only", "replaced the first"),
    ("replaces", creates, "creates at once", "16 won"),
    ("races", creates, "creates at once", "won"),
    ("stale", store_probes.read_after_write, "read after write", "never written"),
    ("keeps", store_probes.read_after_write, "delete", "still there after it was deleted"),
    ("etag", store_probes.etags, "etags", "has the same ETag"),
    ("flips", store_probes.ranges, "ranges", "differ from the written bytes"),
    ("flips", store_probes.checksums, "checksums", "65537 bytes is another"),
    ("rots", store_probes.checksums, "checksums", "uploaded in parts is another"),
    ("loses", few, "listing", "1 of 22 keys are missing"),
    ("unsorted", few, "listing", "key order is needed"),
]


@pytest.mark.parametrize(("probe", "wanted"), HONEST.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_honest_store_passes(scratch, probe, wanted, monkeypatch):
    monkeypatch.setattr(store_probes, "PARTS_BYTES", 2**20 + 1)
    assert levels(probe(scratch)) == wanted


@pytest.mark.parametrize(
    ("lie", "probe", "check", "told"), LIES, ids=lambda one: one if isinstance(one, str) else ""
)
def test_lie_is_named(gateway, scratch, lie, probe, check, told, monkeypatch):
    monkeypatch.setattr(store_probes, "PARTS_BYTES", 2**20 + 1)
    gateway.lie = lie
    (found,) = [one for one in probe(scratch) if one.check == check]
    assert found.level == "fail"
    assert told in found.what
    assert found.do


def test_race_is_not_seen_in_turn(gateway, scratch):
    """Why sixteen try at once: a server that looks and then writes refuses whoever comes later."""
    gateway.lie = "races"
    assert levels(creates(scratch)) == {"create-only": "ok", "creates at once": "fail"}


def test_nothing_is_published_to_a_store_whose_creates_replace(gateway, s3, running):
    gateway.lie = "replaces"
    root = loader.Root("s3://doctor/liar", options=s3)
    with (
        refusal(InvalidStore, what="create-only write", where="s3://doctor/liar"),
        root.write("d") as writer,
    ):
        writer.add("k", {"cls": 1})
    assert running[2].list_objects_v2(Bucket="doctor", Prefix="liar/").get("KeyCount") == 0


def test_ranges_beyond_the_end_that_are_answered():
    """By zeros."""

    def get_range(store, key, offset, nbytes, etag=None):
        if offset > store.head(key).nbytes + 1000:
            return Blob(bytes(nbytes), "etag")
        return store.get_range(key, offset, nbytes, etag)

    padding = ProxyStore(open_store("memory://padding"), get_range=get_range)
    (found,) = store_probes.ranges(Scratch(padding))
    assert (found.level, "beyond the end" in found.what) == ("fail", True)


def test_everything_is_removed(scratch):
    for probe in (creates, store_probes.read_after_write, store_probes.etags, few):
        list(probe(scratch))
    assert any(scratch.store.list(scratch.prefix))
    scratch.remove()
    assert list(scratch.store.list("")) == []
