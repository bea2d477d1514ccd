"""Several stores as one: which serves a read, what becomes of one that is down, lags, lies or is another's."""

import itertools
import logging
import pickle
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import (
    Changed,
    Corrupt,
    Forbidden,
    InvalidStore,
    ObjectNotFound,
    PenstockError,
    Throttled,
    Transient,
)
from loader.storage import ByteRange, open_store
from loader.storage.mirror import MirroredStore
from loader.storage.mirror_members import PASSED_OVER_MAX_S
from loader.storage.requests import Traffic, count_requests, retry_corrupt, try_once
from tests.refusals import refusal
from tests.servers.patience import until

_numbers = itertools.count()
READS = ("get", "get_range", "get_ranges", "head")


class Shaky:
    """A store that raises what `down` says, and counts what it is asked for."""

    def __init__(self, store):
        self.store, self.url, self.down, self.asked = store, store.url, None, []

    def __getattr__(self, name):
        def call(key, *args, **kwargs):
            self.asked.append((name, key))
            if self.down is not None:
                raise self.down(f"{self.url}/{key}: told so")
            return getattr(self.store, name)(key, *args, **kwargs)

        return call


def shaky(name):
    return Shaky(open_store(f"memory://mirrored-{next(_numbers)}/{name}"))


def whose(store):
    """The identity of a store in these tests: what lies under "id"."""
    try:
        return store.get("id").data.decode() or None
    except ObjectNotFound:
        return None


@pytest.fixture
def pair():
    """(primary, mirror), both shaky and of one root."""
    stores = shaky("primary"), shaky("mirror")
    for one in stores:
        one.store.put("id", b"r")
    return stores


def mirrored(*stores):
    """The stores as one, and a clock that stands still unless it is told."""
    made, now = MirroredStore(stores, whose), [0.0]
    for one in made._members.all:
        one._clock = lambda: now[0]
    return made, now


def read_with(store, verb, key):
    return {
        "get": lambda: store.get(key).data,
        "get_range": lambda: store.get_range(key, 0, 4).data,
        "get_ranges": lambda: store.get_ranges(key, [ByteRange(0, 4)])[0].data,
        "head": lambda: store.head(key).nbytes,
    }[verb]()


@pytest.mark.parametrize("verb", READS)
def test_what_the_nearest_lacks_the_next_is_asked_for(pair, verb, caplog):
    primary, mirror = pair
    mirror.store.put("data/a", b"four")
    both, _ = mirrored(primary, mirror)
    both._members._order = both._members.all
    traffic = Traffic()
    with count_requests(traffic), caplog.at_level(logging.WARNING):
        assert read_with(both, verb, "data/a") == (4 if verb == "head" else b"four")
        assert read_with(both, verb, "data/a") == (4 if verb == "head" else b"four")
    assert traffic.fallbacks == 2
    assert both.served == [(primary.url, 0), (mirror.url, 2)]
    (record,) = caplog.records  # once for each store
    assert primary.url in record.getMessage()
    with pytest.raises(ObjectNotFound) as caught:
        read_with(both, verb, "data/nowhere")
    assert mirror.url in " ".join(caught.value.__notes__)


@pytest.mark.parametrize("error", [Transient, Throttled, Forbidden])
def test_store_that_is_down_is_passed_over_and_asked_again(pair, error, caplog):
    primary, mirror = pair
    for one in pair:
        one.store.put("data/a", b"four")
    both, now = mirrored(primary, mirror)
    both._members._order = both._members.all
    assert both.get("data/a").data == b"four"
    primary.down = error
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert both.get_range("data/a", 0, 4).data == b"four"
    failed = [what for what in primary.asked if what[0] == "get_range"]
    assert len(failed) == (3 if error is Forbidden else 1)  # one object may be forbidden alone
    (record,) = caplog.records
    assert "passed over" in record.getMessage()
    for _ in range(4):  # each time that it does not answer, it is left alone twice as long
        before = len(primary.asked)
        now[0] += PASSED_OVER_MAX_S
        both.get("data/a")
        until(lambda before=before: len(primary.asked) == before + 1)
        until(lambda: not both._members.primary._asking)
        assert both.get("data/a").data == b"four"
        assert len(primary.asked) == before + 1
    primary.down = None
    now[0] += PASSED_OVER_MAX_S
    both.get("data/a")
    until(lambda: both._members.primary.is_healthy)
    served = both.served[0][1]
    both.get("data/a")
    assert both.served[0][1] == served + 1


def test_one_failed_read_ahead_does_not_change_the_store(pair):
    primary, mirror = pair
    for one in pair:
        one.store.put("data/a", b"four")
    both, _ = mirrored(primary, mirror)
    both._members._order = both._members.all
    primary.down = Transient
    with try_once():
        both.get("data/a")
        both.get("data/a")
        assert both._members.primary.is_healthy
        both.get("data/a")
    assert not both._members.primary.is_healthy


def test_object_that_must_be_there_is_waited_for_and_another_is_not(pair):
    """A mirror that lags, and a primary that is down for a moment: a shard is not taken for lost."""
    primary, mirror = pair
    primary.store.put("data/new", b"four")
    both, _ = mirrored(primary, mirror)
    both._members._order = both._members.all
    primary.down = Transient
    with pytest.raises(Transient) as caught:
        both.get("data/new")
    assert "no such object" in " ".join(caught.value.__notes__)
    with pytest.raises(ObjectNotFound):
        both.get("log/000000000002.json")
    asked = len(primary.asked)
    with pytest.raises(ObjectNotFound):
        both.get("log/000000000002.json")
    assert len(primary.asked) == asked  # while it is passed over
    primary.down = None
    assert both.get("data/new").data == b"four"


def test_wrong_bytes_are_read_of_another_store(pair):
    primary, mirror = pair
    primary.store.put("data/a", b"flip")
    mirror.store.put("data/a", b"four")
    both, _ = mirrored(primary, mirror)
    both._members._order = both._members.all

    def read():
        if (data := both.get_range("data/a", 0, 4).data) != b"four":
            raise Corrupt(f"read {data!r}")
        return data

    assert retry_corrupt(read) == retry_corrupt(read, again=0) == b"four"
    mirror.store.put("data/a", b"flop")
    with pytest.raises(Corrupt):
        retry_corrupt(read)
    mirror.down = Transient  # it may have the right bytes: nobody may say that they are lost
    with pytest.raises(Transient):
        retry_corrupt(read)


def test_store_that_holds_it_cut_off_is_left_for_the_next(pair):
    primary, mirror = pair
    primary.store.put("data/a", b"fo")
    mirror.store.put("data/a", b"four")
    both, _ = mirrored(primary, mirror)
    both._members._order = both._members.all
    assert both.get_range("data/a", 0, 4).data == b"four"


def test_etags_are_pinned_in_each_store_and_look_alike(pair):
    primary, mirror = pair
    for one in pair:
        one.store.put("data/a", b"four")
    mirror.store.put("data/a", b"four")  # another ETag than the primary's
    both, _ = mirrored(primary, mirror)
    both._members._order = both._members.all
    pinned = both.get_range("data/a", 0, 4).etag
    primary.down = Transient
    assert both.get_range("data/a", 0, 4, pinned).etag == pinned
    mirror.store.put("data/a", b"five")
    with pytest.raises(Transient):  # the mirror's is another object now, the primary may still have it
        both.get_range("data/a", 0, 4, pinned)
    primary.down = None
    assert both.get_range("data/a", 0, 4, pinned).data == b"four"
    primary.store.put("data/a", b"five")
    with pytest.raises(Changed):
        both.get_range("data/a", 0, 4, pinned)
    assert both.get_range("data/a", 0, 4).etag != pinned


def test_only_the_primary_is_written(pair, tmp_path):
    primary, mirror = pair
    both, _ = mirrored(primary, mirror)
    (tmp_path / "f").write_bytes(b"file")
    both.put("a", b"1")
    both.put_if_absent("b", b"2")
    both.put_file("c", str(tmp_path / "f"))
    both.copy("a", "d")
    both.delete_many(["b"])
    assert {info.key for info in primary.store.list("")} == {"a", "c", "d", "id"}
    assert {info.key for info in mirror.store.list("")} == {"id"}
    assert {name for name, _ in mirror.asked} <= {"get"}
    mirror.store.put("ledgers/x", b"")
    assert [info.key for info in both.list("")] == ["a", "c", "d", "id"]
    primary.down = Transient
    assert [info.key for info in both.list("ledgers")] == ["ledgers/x"]


def test_another_root_is_no_mirror_and_an_empty_place_is_passed_over(pair, caplog):
    primary, mirror = pair
    primary.store.put("data/a", b"four")
    mirror.store.put("id", b"another")
    with refusal(InvalidStore, what="mirror", where=mirror.url, given="another", accepted="r"):
        mirrored(primary, mirror)[0].get("data/a")
    late, _ = mirrored(primary, mirror)  # the mirror is asked for nothing, until the primary lacks something
    late._members._order = late._members.all
    assert late.get("data/a").data == b"four"
    with refusal(InvalidStore, what="mirror", where=mirror.url, given="another", accepted="r"):
        late.get("data/b")
    mirror.store.delete_many(["id"])
    empty, _ = mirrored(mirror, primary)
    with refusal(ObjectNotFound, what="root", where=empty.url, given="none"):
        empty.put_if_absent("log/1", b"")  # the history of the mirror would begin in an empty bucket
    empty, _ = mirrored(primary, mirror)
    empty._members._order = list(reversed(empty._members.all))
    asked = len(mirror.asked)
    for _ in range(5):
        assert empty.get("data/a").data == b"four"
    assert len(mirror.asked) == asked + 1


def test_nearest_answers_first():
    near, far, silent = shaky("near"), shaky("far"), shaky("silent")
    let_go = threading.Event()
    for one in (near, far, silent):
        one.store.put("id", b"r")

    def slowly(store):
        if store is silent:
            let_go.wait()
        time.sleep(0.1 if store is far else 0)
        return whose(store)

    try:
        made = MirroredStore([far, silent, near], slowly)
        near.store.put("data/a", b"four")
        assert made.get("data/a").data == b"four"
        assert [one.url for one in made._members.in_order()] == [near.url, far.url, silent.url]
        assert [one.is_healthy for one in made._members.all] == [True, False, True]
    finally:
        let_go.set()


def test_store_that_was_down_at_the_first_read_is_measured_when_it_answers_again():
    near, far = shaky("near"), shaky("far")
    for one in (near, far):
        one.store.put("id", b"r")
        one.store.put("data/a", b"four")

    def identity(store):
        time.sleep(0.04 if store is far else 0)
        return whose(store)

    both = MirroredStore([far, near], identity)
    now = [0.0]
    for member in both._members.all:
        member._clock = lambda: now[0]
    near.down = Transient
    both.get("data/a")
    assert both._members.in_order()[0].url == far.url
    near.down = None
    now[0] += PASSED_OVER_MAX_S
    both.get("data/a")
    until(lambda: both._members.all[1].is_healthy)
    asked = len(near.asked)
    for number in range(1, 4):
        now[0] += PASSED_OVER_MAX_S
        both.get("data/a")
        assert len(near.asked) == asked + number  # only the reads
    assert both._members.in_order()[0].url == near.url


def test_folder_of_this_machine_is_the_nearest(pair, tmp_path):
    primary, _ = pair
    folder = open_store(str(tmp_path))
    folder.put("id", b"r")
    folder.put("data/a", b"four")
    both, _ = mirrored(primary, folder)
    assert both.disk is both
    data, token = both.read_each("data/a", [(2, 2), (0, 1)])
    assert (data, primary.asked) == ([b"ur", b"f"], [])
    assert both.etag_of("data/a", token) == token
    primary.store.put("data/a", b"four")
    folder.delete_many(["data/a"])
    assert both.etag_of("data/a", token) is None
    filled = bytearray(4)
    assert both.read_into("data/a", [(0, 4, [memoryview(filled)[:1], memoryview(filled)[1:]])]) == token
    assert filled == b"four"
    assert mirrored(*pair)[0].disk is None


def test_pickle_has_no_secret_and_reads_on(s3):
    store = open_store("s3://bucket/mirrored-pickle", s3)
    store.put("id", b"r")
    store.put("data/a", b"four")
    held = MirroredStore([store, open_store("s3://bucket/mirrored-mirror", s3)], whose)
    data = pickle.dumps(held)
    assert b"PLANTED" not in data
    assert pickle.loads(data).url == held.url  # noqa: S301


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    holds=st.lists(st.sampled_from(["right", "wrong", "short", "nothing"]), min_size=2, max_size=3),
    down=st.lists(st.sampled_from([None, None, Transient, Forbidden]), min_size=3, max_size=3),
    rounds=st.integers(1, 3),
)
def test_right_bytes_are_found_wherever_they_are_and_never_said_to_be_lost_while_they_may_be_there(
    holds, down, rounds
):
    stores = [shaky(f"s{i}") for i in range(len(holds))]
    for one, what in zip(stores, holds, strict=True):
        one.store.put("id", b"r")
        data = {"right": b"four", "wrong": b"flip", "short": b"fo"}.get(what)
        if data:
            one.store.put("data/a", data)
    made, _ = mirrored(*stores)
    made._members._order = made._members.all
    for one, error in zip(stores, down, strict=False):
        one.down = error
    reachable = [what for what, error in zip(holds, down, strict=False) if error is None]

    def read():
        if (data := made.get_range("data/a", 0, 4).data) != b"four":
            raise Corrupt(f"read {data!r}")
        return data

    for _ in range(rounds):
        if "right" in reachable:
            assert retry_corrupt(read) == b"four"
            continue
        with pytest.raises(PenstockError) as caught:
            retry_corrupt(read)
        lost = isinstance(caught.value, Corrupt | ObjectNotFound)
        assert lost == (len(reachable) == len(holds))


class Moving:
    """A store that counts the bytes of what it gave."""

    def __init__(self, store):
        self.store, self.url, self.nbytes = store, store.url, 0

    def __getattr__(self, name):
        def call(*args, **kwargs):
            found = getattr(self.store, name)(*args, **kwargs)
            for blob in found if isinstance(found, list) else [found]:
                self.nbytes += len(getattr(blob, "data", b""))
            return found

        return call


@pytest.mark.parametrize(
    "read",
    [
        lambda store, etag: store.get_range("k", 0, 50_000, etag),
        lambda store, etag: store.get_ranges(
            "k", [ByteRange(0, 10), ByteRange(70_000, 10)], etag=etag, max_gap=0
        ),
    ],
    ids=["get_range", "get_ranges"],
)
def test_no_bytes_move_of_what_was_replaced(read):
    """A store is told which object is meant: it says no, instead of sending another one, and the next is read."""
    kept, other = (open_store(f"memory://moving-{next(_numbers)}") for _ in range(2))
    for store in (kept, other):
        store.put("k", b"1" * 100_000)
    moving = Moving(kept)
    mirrored = MirroredStore([moving, other], lambda store: "id")
    etag = mirrored.get_range("k", 0, 1).etag
    kept.put("k", b"2" * 100_000)
    before = moving.nbytes
    found = read(mirrored, etag)
    assert {byte for blob in (found if isinstance(found, list) else [found]) for byte in blob.data} == {
        ord("1")
    }
    assert moving.nbytes == before
