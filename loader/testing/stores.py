"""The conformance suite for stores.

class TestMyStore(StoreConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return Backend(open=lambda: open_store(f"mine://{tmp_path}"))
"""

import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..errors import AlreadyExists, Changed, Corrupt, InvalidStore, ObjectNotFound, StoreError
from ..storage import Blob, ByteRange, Store
from ..storage.disk.scratch import OnScratch
from ..storage.store import list_from, list_keys, new_in_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """An empty location, and the store that opens it."""

    open: Callable[[], Store]
    """Opens the store; each call opens the same location."""
    creates: bool = True
    """False for a store without an atomic create: `put_if_absent` raises InvalidStore."""
    tells_time: bool = True
    """False for a store whose `ObjectInfo.modified_us` is None."""
    refused: frozenset[str] = frozenset()
    """Characters that the format allows in a key, but this store rejects with InvalidStore."""
    secrets: tuple[str, ...] = ()
    """Credential texts that the store's pickles and names must not contain."""


DATA = bytes(random.Random(1).randbytes(200_000))
"""Random, so that no two ranges of it are alike."""


class StoreReads:
    """Tests for reads, listings and their errors."""

    def test_put_and_get(self, store: Store) -> None:
        for nbytes in (0, 1, 65536, 200_000):
            store.put(f"a/{nbytes}", DATA[:nbytes])
            blob = store.get(f"a/{nbytes}")
            assert isinstance(blob, Blob)
            assert isinstance(blob.data, bytes)
            assert blob.data == DATA[:nbytes]
            assert blob.etag == store.head(f"a/{nbytes}").etag != ""

    def test_get_of_a_large_object_is_whole(self, store: Store) -> None:
        # Above the size from which stores read in parts.
        data = bytes(17 * 2**20) + b"end"
        store.put("large", data)
        assert store.get("large").data == data

    def test_reads_of_a_missing_object_raise(self, store: Store) -> None:
        store.put("no/other", b"x")
        reads: list[Callable[[], object]] = [
            lambda: store.get("no/such"),
            lambda: store.get_range("no/such", 0, 1),
            lambda: store.get_range("no/such", 0, 0),
            lambda: store.get_ranges("no/such", [ByteRange(0, 1), ByteRange(2, 1)]),
            lambda: store.get_ranges("no/such", []),
            lambda: store.head("no/such"),
            lambda: store.copy("no/such", "other"),
            lambda: store.open_stream("no/such"),
        ]
        for read in reads:
            with pytest.raises(ObjectNotFound, match="no/such") as caught:
                read()
            assert isinstance(caught.value, FileNotFoundError)

    # A local disk has a directory there, which must not be read.
    def test_folder_is_no_object(self, store: Store) -> None:
        store.put("folder/a", b"x")
        with pytest.raises(ObjectNotFound):
            store.get("folder")
        with pytest.raises(ObjectNotFound):
            store.head("folder")

    def test_get_range(self, store: Store) -> None:
        store.put("k", DATA)
        for offset, nbytes in ((0, 200_000), (0, 1), (199_999, 1), (70_000, 65_536), (5, 0), (200_000, 0)):
            blob = store.get_range("k", offset, nbytes)
            assert blob.data == DATA[offset : offset + nbytes]
            assert store.get_range("k", offset, nbytes, blob.etag) == blob

    def test_range_past_the_end_is_corrupt(self, store: Store) -> None:
        store.put("k", b"0123456789")
        ranges = (ByteRange(0, 11), ByteRange(9, 2), ByteRange(10, 1), ByteRange(500, 1), ByteRange(11, 0))
        for past in ranges:
            with pytest.raises(Corrupt, match="k"):
                store.get_range("k", past.offset, past.nbytes)
            # `get_ranges` reads no empty range: its neighbour is past the end instead.
            if past.nbytes:
                several = [ByteRange(0, 1), past]
            else:
                several = [past, ByteRange(11, 1)]
            with pytest.raises(Corrupt):
                store.get_ranges("k", several)

    def test_negative_range_is_refused(self, store: Store) -> None:
        store.put("k", b"0123456789")
        for negative in (ByteRange(-1, 2), ByteRange(0, -1)):
            with pytest.raises(InvalidStore):
                store.get_range("k", negative.offset, negative.nbytes)
            with pytest.raises(InvalidStore):
                store.get_ranges("k", [negative])

    def test_replaced_object_is_changed(self, store: Store) -> None:
        store.put("k", b"first")
        pinned = store.get_range("k", 0, 2).etag
        store.put("k", b"second one")
        for read in (
            lambda: store.get_range("k", 0, 2, pinned),
            lambda: store.get_range("k", 0, 0, pinned),
            lambda: store.get_ranges("k", [ByteRange(0, 1), ByteRange(3, 1)], etag=pinned, max_gap=0),
        ):
            with pytest.raises(Changed, match="replaced"):
                read()
        assert store.get_range("k", 0, 2).etag != pinned

    def test_get_ranges_keeps_the_order_given(self, store: Store) -> None:
        store.put("k", DATA)
        # Backwards, overlapping, twice, empty, at the end, and longer than some of the spans.
        pairs = [(100_000, 10), (0, 5), (3, 9), (0, 5), (7, 0), (199_990, 10), (20, 60_000)]
        spans = [ByteRange(offset, nbytes) for offset, nbytes in pairs]
        for max_gap, max_span in ((0, 2**20), (64 * 2**10, 2**20), (10, 4096), (10**6, 10**6)):
            blobs = store.get_ranges("k", spans, max_gap=max_gap, max_span=max_span)
            assert [blob.data for blob in blobs] == [
                DATA[offset : offset + nbytes] for offset, nbytes in spans
            ]
            assert {blob.etag for blob in blobs} == {store.head("k").etag}
        assert store.get_ranges("k", []) == []

    def test_head(self, store: Store) -> None:
        store.put("a/b", b"four")
        info = store.head("a/b")
        assert (info.key, info.nbytes) == ("a/b", 4)
        assert info in list(store.list())

    def test_open_stream(self, store: Store) -> None:
        data = DATA * 20
        store.put("k", data)
        with store.open_stream("k") as stream:
            assert stream.readable()
            assert stream.read(10) == data[:10]
            assert stream.read(2_000_000) == data[10:2_000_010]
            assert stream.read() == data[2_000_010:]
            assert stream.read() == b""
        store.put("empty", b"")
        with store.open_stream("empty") as stream:
            assert stream.read() == b""

    def test_closed_store_can_be_used_again(self, store: Store) -> None:
        store.put("k", DATA)
        apart = [ByteRange(0, 1), ByteRange(100, 1)]
        store.get_ranges("k", apart, max_gap=0)  # two requests, so that connections are open
        store.close()
        assert store.get_ranges("k", apart, max_gap=0)[1].data == DATA[100:101]
        store.close()

    def test_many_threads_read_one_store(self, store: Store) -> None:
        store.put("k", DATA)
        wrong: list[int] = []

        def read(number: int) -> None:
            wrong.extend(
                offset
                for offset in range(number, 100_000, 12_345)
                if store.get_range("k", offset, 1000).data != DATA[offset : offset + 1000]
            )

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_list_is_in_key_order(self, store: Store) -> None:
        # `!` and `.` sort before `/`, `0` after it: a walk of folders gives another order.
        keys = ["a", "b!", "b.c", "b/c", "b/c.d/e", "b/c!", "b0", "ä", "z/1", "z/10", "z/2", "日本"]
        for key in random.Random(2).sample(keys, len(keys)):
            store.put(key, b"x")
        listed = [info.key for info in store.list()]
        assert listed == sorted(keys)
        for prefix in ("", "b", "b/", "b/c", "b/c.d/", "z/1", "nothing", "a", "ä"):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert [info.key for info in store.list(prefix)] == expected
            assert list(list_keys(store, prefix)) == expected
        # Keys that exist, keys between two of them, and keys after all.
        for after in ("", "a", "b", "b.c", "b.d", "b/", "b/c", "b/c.d/e", "b/zz", "z/10", "zz", "日本"):
            for prefix in ("", "b", "z/"):
                expected = sorted(key for key in keys if key.startswith(prefix) and key > after)
                assert [info.key for info in store.list(prefix, start_after=after)] == expected

    def test_fresh_store_is_empty(self, store: Store) -> None:
        assert list(store.list()) == []
        assert list(store.list("some/prefix")) == []
        store.delete_many(["nothing"])

    def test_list_from_returns_what_list_returns_after_a_key(self, store: Store) -> None:
        keys = sorted(["a", "b!", "b.c", "b/c", "b/c.d/e", "b0", "ä/1", "z/1", "z/10", "日本"])
        for key in keys:
            store.put(key, b"x")
        for after in ("", "a", "b", "b/", "b/c", "b/zz", "ä", "z/10", "日本"):
            assert [info.key for info in list_from(store, "", after)] == [key for key in keys if key > after]
            expected = [key for key in keys if key > after and key.startswith("b/")]
            assert [info.key for info in list_from(store, "b/", after)] == expected

    def test_list_and_head_agree_when_an_object_was_written(self, backend: Backend, store: Store) -> None:
        store.put("a", b"x")
        (listed,) = store.list("a")
        if backend.tells_time:
            assert listed.modified_us is not None
            # Wide bounds, which only another unit than microseconds misses: some servers' clocks stand still.
            earliest_us = 1_600_000_000_000_000
            latest_us = time.time_ns() // 1000 + 60_000_000
            assert earliest_us < listed.modified_us < latest_us
            modified_us = store.head("a").modified_us  # from HTTP dates, which have whole seconds
            assert modified_us is not None
            assert modified_us // 1_000_000 == listed.modified_us // 1_000_000


# fmt: off
ODD_KEYS = [
    "a b", "é/ü", "日本/語", "50%/a%20b", "a#b", "a+b", "a&b=c", "a'b", "~a", "..a", "a:b@c", "a[1]*?",
]
"""Keys that a URL, a shell or a path could read as something else."""
BAD_KEYS = [
    "", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\nb", "a\0b", "x" * 1025, "\udcff",
]
# fmt: on
"""Keys that every store rejects: see `check_key`."""


class StoreWrites:
    """Tests for writes, keys, and stores sent to other processes."""

    def test_put_replaces(self, store: Store) -> None:
        store.put("k", b"long before")
        store.put("k", b"after")
        assert store.get("k").data == b"after"
        assert [info.key for info in store.list()] == ["k"]

    def test_put_if_absent(self, backend: Backend, store: Store) -> None:
        if not backend.creates:
            with pytest.raises(InvalidStore, match="cannot create atomically"):
                store.put_if_absent("k", b"x")
            assert list(store.list()) == []
            return
        store.put_if_absent("log/1", b"one")
        store.put_if_absent("log/1", b"one")  # the same bytes: a retry after a lost response
        store.put_if_absent("empty", b"")
        with pytest.raises(AlreadyExists, match="log/1"):
            store.put_if_absent("log/1", b"two")
        with pytest.raises(AlreadyExists):
            store.put_if_absent("empty", b"not")
        assert store.get("log/1").data == b"one"
        assert [info.key for info in store.list()] == ["empty", "log/1"]

    def test_one_of_many_creators_wins(self, backend: Backend, store: Store) -> None:
        if not backend.creates:
            with pytest.raises(InvalidStore, match="cannot create atomically"):
                store.put_if_absent("k", b"x")
            return
        together = threading.Barrier(32)
        won: list[bytes] = []
        lost: list[str] = []  # names of errors

        def create(number: int) -> None:
            data = b"writer %d" % number
            together.wait()
            try:
                store.put_if_absent("log/000001", data)
                won.append(data)
            except StoreError as error:
                lost.append(type(error).__name__)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lost == ["AlreadyExists"] * 31
        assert won == [store.get("log/000001").data]

    def test_put_file(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "to upload"
        path.write_bytes(DATA)
        store.put("k", b"before")
        store.put_file("k", str(path))
        assert store.get("k").data == DATA
        with pytest.raises(ObjectNotFound, match="no-such-file"):
            store.put_file("k", str(tmp_path / "no-such-file"))
        with pytest.raises(InvalidStore, match="is a directory"):
            store.put_file("k", str(tmp_path))
        assert store.get("k").data == DATA

    def test_objects_that_are_written_forward(self, store: Store) -> None:
        store.put("k", b"before")
        new, other = (new_in_place(store, key) or OnScratch(store, key) for key in ("k", "deep/er/other"))
        for start in range(0, len(DATA), 1000):
            new.write(memoryview(DATA)[start : start + 1000])
            other.write(memoryview(b"x"))
        assert store.get("k").data == b"before"
        new.finish()
        new.close()
        other.close()  # without finish(): no object
        assert store.get("k").data == DATA
        assert [info.key for info in store.list()] == ["k"]

    def test_delete_many(self, store: Store) -> None:
        for key in ("a", "b", "c/d", "c/e"):
            store.put(key, b"x")
        store.delete_many(key for key in ("a", "no/such", "c/d", "a/b"))
        assert [info.key for info in store.list()] == ["b", "c/e"]
        store.delete_many([])

    def test_copy(self, store: Store) -> None:
        store.put("a", b"original")
        store.put("deep/er/b", b"old")
        store.copy("a", "deep/er/b")
        store.copy("a", "new/c")
        assert [store.get(key).data for key in ("a", "deep/er/b", "new/c")] == [b"original"] * 3

    def test_key_is_any_text(self, backend: Backend, store: Store) -> None:
        written = []
        for key in ODD_KEYS:
            if set(key) & backend.refused:
                with pytest.raises(InvalidStore, match="would take the key"):
                    store.put(key, b"x")
                continue
            store.put(key, key.encode())
            written.append(key)
            assert [info.key for info in store.list(key)] == [key]
        assert {info.key: store.get(info.key).data.decode() for info in store.list()} == {
            key: key for key in written
        }
        store.delete_many(written)
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_refused_by_every_verb(self, store: Store, key: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        for verb in (
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.get_ranges(key, [ByteRange(0, 1)]),
            lambda: store.put(key, b"x"),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.put_file(key, str(tmp_path / "file")),
            lambda: store.head(key),
            lambda: store.delete_many([key]),
            lambda: store.copy(key, "b"),
            lambda: store.copy("b", key),
            lambda: store.open_stream(key),
        ):
            with pytest.raises(InvalidStore):
                verb()

    def test_unfinished_files_are_no_keys(self, store: Store) -> None:
        with pytest.raises(InvalidStore, match="unfinished"):
            store.put("a/.tmp-1", b"x")

    def test_stores_of_one_url_share_objects(self, backend: Backend, store: Store) -> None:
        store.put("k", b"x")
        assert backend.open().get("k").data == b"x"

    # `worker_environment` gives the copy the credentials that no pickle holds.
    def test_it_pickles_and_prints_without_secrets(
        self, backend: Backend, store: Store, worker_environment: None
    ) -> None:
        store.put("k", b"x")
        pickled = pickle.dumps(store)
        shown = repr(store) + str(store) + store.url
        for secret in backend.secrets:
            assert secret.encode() not in pickled
            assert secret not in shown
        again = pickle.loads(pickled)  # noqa: S301 - our own bytes
        assert again.get("k").data == b"x"
        assert again.url == store.url

    def test_any_sequence_of_verbs_behaves_as_a_dictionary(self, backend: Backend, store: Store) -> None:
        rng = random.Random(0)
        keys = [f"{folder}{name}" for folder in ("", "a/", "a.b/", "a/b/") for name in ("x", "x.1", "y")]
        model: dict[str, bytes] = {}
        for step in range(80):
            key, other = rng.sample(keys, 2)
            repeats = rng.randrange(3)  # 0: an empty object
            data = b"%d" % step * repeats
            verb = rng.choice(["put", "create", "delete", "copy", "get", "list"])
            if verb == "put":
                store.put(key, data)
                model[key] = data
            elif verb == "create" and backend.creates:
                if model.setdefault(key, data) == data:  # absent, or equal, which passes as a retry
                    store.put_if_absent(key, data)
                else:
                    with pytest.raises(AlreadyExists):
                        store.put_if_absent(key, data)
            elif verb == "delete":
                store.delete_many([key, other])
                model.pop(key, None), model.pop(other, None)
            elif verb == "copy" and key in model:
                store.copy(key, other)
                model[other] = model[key]
            elif verb == "get" and key in model:
                assert store.get(key).data == model[key]
            elif verb == "list":
                prefix = key[: rng.randrange(4)]
                expected = [(k, len(model[k])) for k in sorted(model) if k.startswith(prefix) and k > other]
                assert [(info.key, info.nbytes) for info in store.list(prefix, other)] == expected
        assert {info.key: store.get(info.key).data for info in store.list()} == model


__all__ = ["Backend", "StoreConformance"]


class StoreConformance(StoreReads, StoreWrites):
    """Tests for every store method and every error.

    Extend it with a fixture `backend` that returns a `Backend` at an empty location, new for each test.
    """

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Store]:
        """Yield the opened store."""
        opened = backend.open()
        yield opened
        opened.close()

    @pytest.fixture
    def worker_environment(self) -> None:
        """Set the environment variables in which a worker finds the credentials: they are never sent in a pickle.

        A store without credentials needs none.
        """
