"""Conformance of stores: objects are written, created, copied and deleted as `loader.storage.Store` describes."""

import pickle
import random
import threading
from pathlib import Path

import pytest

from ..errors import AlreadyExists, InvalidStore, ObjectNotFound, StoreError
from ..storage import Span, Store
from ..storage.disk.scratch import OnScratch
from ..storage.store import new_in_place
from .backend import Backend

DATA = bytes(random.Random(1).randbytes(200_000))
BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a\nb",
    "a\0b",
    "x" * 1025,
    "\udcff",
]


class StoreWrites:
    """Writes of objects, keys, and stores that travel to other processes."""

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
        store.put_if_absent("log/1", b"one")
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
        lost: list[str] = []

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
        other.close()
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

    @pytest.mark.parametrize(
        "key",
        ["a b", "é/ü", "日本/語", "50%/a%20b", "a#b", "a+b", "a&b=c", "a'b", "~a", "..a", "a:b@c", "a[1]*?"],
    )
    def test_a_key_is_any_text(self, backend: Backend, store: Store, key: str) -> None:
        if set(key) & backend.refused:
            with pytest.raises(InvalidStore, match="would take the key"):
                store.put(key, b"x")
            return
        store.put(key, b"x")
        assert store.get(key).data == b"x"
        assert [info.key for info in store.list()] == [key]
        assert [info.key for info in store.list(key[:1])] == [key]
        store.delete_many([key])
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_refused_by_every_verb(self, store: Store, key: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        for verb in (
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.get_ranges(key, [Span(0, 1)]),
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

    @pytest.mark.parametrize("seed", range(3))
    def test_any_sequence_of_verbs_behaves_as_a_dictionary(
        self, backend: Backend, store: Store, seed: int
    ) -> None:
        rng = random.Random(seed)
        keys = [f"{folder}{name}" for folder in ("", "a/", "a.b/", "a/b/") for name in ("x", "x.1", "y")]
        model: dict[str, bytes] = {}
        for step in range(60):
            key, other = rng.sample(keys, 2)
            data = b"%d" % step * rng.randrange(3)
            verb = rng.choice(["put", "create", "delete", "copy", "get", "list"])
            if verb == "put":
                store.put(key, data)
                model[key] = data
            elif verb == "create" and backend.creates:
                if model.setdefault(key, data) == data:
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
                expected = sorted((k, len(v)) for k, v in model.items() if k.startswith(prefix) and k > other)
                assert [(info.key, info.nbytes) for info in store.list(prefix, other)] == expected
        assert {info.key: store.get(info.key).data for info in store.list()} == model
