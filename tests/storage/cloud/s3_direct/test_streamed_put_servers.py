"""What is sent while it comes, by whole S3 servers: their conditions, their ETags, and half an object."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from random import Random
from uuid import uuid4

import pytest

from loader.errors import ObjectNotFound
from loader.storage import open_store
from penstock.upkeep.copying.copy_one import Transfer
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.prefix_copy import migrate_prefix

KEY = "a b/ü+%=&.bin"


@pytest.fixture(params=["s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def place(request):
    """place() -> a store at a new prefix."""
    options, made = request.getfixturevalue(request.param), []

    def new():
        made.append(open_store(f"s3://bucket/sent-{uuid4().hex}", options))
        return made[-1]

    yield new
    for one in made:
        one.close()


def sent(store, key, data, *, replace=False, most=None):
    """Whether `data`, of which `most` bytes are sent, has arrived."""
    etag, view = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"', memoryview(data)[:most]
    sending = store.send_twin(key, len(data), etag, replace=replace)
    for at in range(0, len(view), 2**18):
        sending.send(view[at : at + 2**18])
    found = store.finish_twin(sending, etag)
    sending.close()
    return found


def test_an_object_is_created_once_and_replaced(place):
    store, data, other = place(), Random(1).randbytes(3_000_000), b"another"
    assert sent(store, KEY, data) is True
    assert sent(store, KEY, other) is False
    assert store.get(KEY).data == data
    assert sent(store, KEY, other, replace=True) is True
    assert store.get(KEY).data == other


def test_half_an_object_is_none(place):
    store, data = place(), Random(2).randbytes(3_000_000)
    for most in (0, 1, 2**20, len(data) - 1):
        assert sent(store, KEY, data, most=most) is False
    with pytest.raises(ObjectNotFound):
        store.head(KEY)
    store.put_if_absent(KEY, data)
    assert [info.key for info in store.list("")] == [KEY]


def test_a_prefix_goes_to_another_without_being_held(place, monkeypatch):
    source, target = place(), place()
    made = {f"{number:03}/{KEY}": Random(number).randbytes(2**20 + number) for number in range(1, 20)}
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(source.put, made, made.values()))
    monkeypatch.setattr(Transfer, "_held", None)
    report = migrate_prefix(source, target, Pace(), at_once=8)
    assert (report.copied, report.failures) == (len(made), {})
    assert {key: target.get(key).data for key in made} == made
