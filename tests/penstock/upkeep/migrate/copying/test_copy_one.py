"""Objects of several pieces on their way from store to store: hashed as they are, and all of one."""

import hashlib
import itertools
import time

import pytest

from loader.errors import Changed, Corrupt
from loader.storage import open_store
from penstock.upkeep.copying.copy_one import Transfer
from penstock.upkeep.copying.items import Item, Pace
from tests.refusals import refusal

DATA = bytes(range(250)) * 5
_numbers = itertools.count()


class Source:
    """A store of which every request for a piece but the first does something before it is answered."""

    def __init__(self, do):
        self.store = open_store(f"memory://transfer-{next(_numbers)}")
        self.store.put("k", DATA)
        self.url, self.do = self.store.url, do

    def get_range(self, key, offset, nbytes, etag=None):
        if offset:
            self.do(self.store)
        return self.store.get_range(key, offset, nbytes, etag)


@pytest.fixture
def copy_object(monkeypatch):
    """copy_object(do) -> what is known of the object, and what the target has of it."""
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.PIECE_BYTES", 100)

    def copy(do):
        target = open_store(f"memory://transfer-{next(_numbers)}")
        known = Transfer(Source(do), target, Pace())(Item(path="k", nbytes=len(DATA)))
        return known, target.get("k").data

    return copy


def test_large_object_is_hashed_as_it_is(copy_object):
    known, data = copy_object(lambda store: time.sleep(0.02))
    assert data == DATA
    assert known.digest == f"sha256:{hashlib.sha256(DATA).hexdigest()}"


def test_large_object_of_another_size_does_not_arrive(monkeypatch):
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.HELD_BYTES", 100)
    source, target = (open_store(f"memory://transfer-{next(_numbers)}") for _ in range(2))
    source.put("k", DATA)
    with refusal(Corrupt, what="object", within="/k", given=f"bytes {len(DATA)}", accepted="bytes 999"):
        Transfer(source, target, Pace())(Item(path="k", nbytes=999))
    assert list(target.list("")) == []


def test_large_object_that_is_replaced_while_it_is_read_is_named(copy_object):
    with pytest.raises(Changed):
        copy_object(lambda store: store.put("k", DATA[::-1]))
