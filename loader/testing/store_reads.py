"""Conformance of stores: objects, ranges, streams and listings are read as `loader.storage.Store` describes."""

import random
import threading
import time
from collections.abc import Callable

import pytest

from ..errors import Changed, Corrupt, InvalidStore, ObjectNotFound
from ..storage import Blob, Span, Store
from ..storage.store import list_from
from .backend import Backend

DATA = bytes(random.Random(1).randbytes(200_000))


class StoreReads:
    """Reads of objects and listings, and their errors."""

    @pytest.mark.parametrize("nbytes", [0, 1, 65536, 200_000])
    def test_put_and_get(self, store: Store, nbytes: int) -> None:
        store.put("a/b", DATA[:nbytes])
        blob = store.get("a/b")
        assert isinstance(blob, Blob)
        assert isinstance(blob.data, bytes)
        assert blob.data == DATA[:nbytes]
        assert blob.etag == store.head("a/b").etag != ""

    def test_get_of_a_large_object_is_whole(self, store: Store) -> None:
        data = bytes(17 * 2**20) + b"end"
        store.put("large", data)
        assert store.get("large").data == data

    @pytest.mark.parametrize(
        "read",
        [
            lambda store: store.get("no/such"),
            lambda store: store.get_range("no/such", 0, 1),
            lambda store: store.get_range("no/such", 0, 0),
            lambda store: store.get_ranges("no/such", [Span(0, 1), Span(2, 1)]),
            lambda store: store.get_ranges("no/such", []),
            lambda store: store.head("no/such"),
            lambda store: store.copy("no/such", "other"),
            lambda store: store.open_stream("no/such"),
        ],
    )
    def test_what_is_not_there_is_not_found(self, store: Store, read: Callable[[Store], object]) -> None:
        store.put("no/other", b"x")
        with pytest.raises(ObjectNotFound) as caught:
            read(store)
        assert isinstance(caught.value, FileNotFoundError)
        assert "no/such" in str(caught.value)

    def test_a_folder_is_no_object(self, store: Store) -> None:
        store.put("folder/a", b"x")
        with pytest.raises(ObjectNotFound):
            store.get("folder")
        with pytest.raises(ObjectNotFound):
            store.head("folder")

    @pytest.mark.parametrize(
        ("offset", "nbytes"), [(0, 200_000), (0, 1), (199_999, 1), (70_000, 65_536), (5, 0), (200_000, 0)]
    )
    def test_get_range(self, store: Store, offset: int, nbytes: int) -> None:
        store.put("k", DATA)
        blob = store.get_range("k", offset, nbytes)
        assert blob.data == DATA[offset : offset + nbytes]
        assert store.get_range("k", offset, nbytes, blob.etag) == blob

    @pytest.mark.parametrize(("offset", "nbytes"), [(0, 11), (9, 2), (10, 1), (500, 1), (11, 0)])
    def test_a_range_past_the_end_is_corrupt(self, store: Store, offset: int, nbytes: int) -> None:
        store.put("k", b"0123456789")
        with pytest.raises(Corrupt, match="k"):
            store.get_range("k", offset, nbytes)
        with pytest.raises(Corrupt):
            store.get_ranges(
                "k", [Span(0, 1), Span(offset, nbytes)] if nbytes else [Span(offset, nbytes), Span(11, 1)]
            )

    @pytest.mark.parametrize(("offset", "nbytes"), [(-1, 2), (0, -1)])
    def test_a_negative_range_is_refused(self, store: Store, offset: int, nbytes: int) -> None:
        store.put("k", b"0123456789")
        with pytest.raises(InvalidStore):
            store.get_range("k", offset, nbytes)
        with pytest.raises(InvalidStore):
            store.get_ranges("k", [Span(offset, nbytes)])

    def test_a_replaced_object_is_changed(self, store: Store) -> None:
        store.put("k", b"first")
        pinned = store.get_range("k", 0, 2).etag
        store.put("k", b"second one")
        for read in (
            lambda: store.get_range("k", 0, 2, pinned),
            lambda: store.get_range("k", 0, 0, pinned),
            lambda: store.get_ranges("k", [Span(0, 1), Span(3, 1)], etag=pinned, max_gap=0),
        ):
            with pytest.raises(Changed, match="replaced"):
                read()
        assert store.get_range("k", 0, 2).etag != pinned

    def test_get_ranges_keeps_the_order_given(self, store: Store) -> None:
        store.put("k", DATA)
        spans = [
            Span(100_000, 10),
            Span(0, 5),
            Span(3, 9),
            Span(0, 5),
            Span(7, 0),
            Span(199_990, 10),
            Span(20, 60_000),
        ]
        for max_gap, max_span in ((0, 2**20), (64 * 2**10, 2**20), (10, 4096), (10**6, 10**6)):
            blobs = store.get_ranges("k", spans, max_gap=max_gap, max_span=max_span)
            assert [blob.data for blob in blobs] == [DATA[o : o + n] for o, n in spans]
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

    def test_a_closed_store_can_be_used_again(self, store: Store) -> None:
        store.put("k", DATA)
        store.get_ranges("k", [Span(0, 1), Span(100, 1)], max_gap=0)
        store.close()
        assert store.get_ranges("k", [Span(0, 1), Span(100, 1)], max_gap=0)[1].data == DATA[100:101]
        store.close()

    def test_many_threads_read_one_store(self, store: Store) -> None:
        store.put("k", DATA)
        wrong: list[int] = []

        def read(number: int) -> None:
            for offset in range(number, 100_000, 12_345):
                same = store.get_range("k", offset, 1000).data == DATA[offset : offset + 1000]
                wrong.extend([] if same else [offset])

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_list_is_in_key_order(self, store: Store) -> None:
        keys = ["a", "b!", "b.c", "b/c", "b/c.d/e", "b/c!", "b0", "ä", "z/1", "z/10", "z/2", "日本"]
        for key in random.Random(2).sample(keys, len(keys)):
            store.put(key, b"x")
        listed = [info.key for info in store.list()]
        assert listed == sorted(keys)
        for prefix in ("", "b", "b/", "b/c", "b/c.d/", "z/1", "nothing", "a", "ä"):
            assert [info.key for info in store.list(prefix)] == sorted(
                k for k in keys if k.startswith(prefix)
            )
        for after in ("", "a", "b", "b.c", "b.d", "b/", "b/c", "b/c.d/e", "b/zz", "z/10", "zz", "日本"):
            for prefix in ("", "b", "z/"):
                expected = sorted(k for k in keys if k.startswith(prefix) and k > after)
                assert [info.key for info in store.list(prefix, start_after=after)] == expected

    def test_a_fresh_store_is_empty(self, store: Store) -> None:
        assert list(store.list()) == []
        assert list(store.list("some/prefix")) == []
        store.delete_many(["nothing"])

    def test_a_listing_that_goes_on_and_when_objects_were_written(
        self, backend: Backend, store: Store
    ) -> None:
        """`list_from` gives what `list` gives behind a key, and both tell the time where the store keeps one."""
        keys = sorted(["a", "b!", "b.c", "b/c", "b/c.d/e", "b0", "ä/1", "z/1", "z/10", "日本"])
        for key in keys:
            store.put(key, b"x")
        for after in ("", "a", "b", "b/", "b/c", "b/zz", "ä", "z/10", "日本"):
            assert [info.key for info in list_from(store, "", after)] == [key for key in keys if key > after]
            expected = [key for key in keys if key > after and key.startswith("b/")]
            assert [info.key for info in list_from(store, "b/", after)] == expected
        (listed,) = store.list("a")
        if backend.tells_time:
            assert listed.modified_us is not None
            latest_us = time.time_ns() // 1000 + 60_000_000
            assert 1_600_000_000_000_000 < listed.modified_us < latest_us  # some servers' clocks stand still
            modified_us = store.head("a").modified_us  # by HTTP's dates, which have whole seconds
            assert modified_us is not None
            assert modified_us // 1_000_000 == listed.modified_us // 1_000_000
