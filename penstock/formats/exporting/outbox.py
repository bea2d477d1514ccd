"""Put objects into the target, whole or not at all, and record their hashes."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from loader.storage import Store
from loader.storage.disk.scratch import held_file, held_folder, on_scratch


class HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256, self.nbytes = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes, and return their number."""
        self._file.write(data)
        self._sha256.update(data)
        self.nbytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written so far, hex."""
        return self._sha256.hexdigest()


class Outbox:
    """Puts objects, and lists those it has put. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects: list[dict[str, Any]] = []

    def put(self, key: str, data: bytes) -> None:
        """Put an object. Raises: StoreError."""
        self.store.put(key, data)
        self._note(key, len(data), hashlib.sha256(data).hexdigest())

    @contextmanager
    def file(self, key: str) -> Iterator[HashedFile]:
        """Put an object of the bytes written in the block; nothing if the block raises. Raises: StoreError."""
        with (
            on_scratch(
                None,
                f"when {key} was written; what was exported before is there",
                room_for="the objects that are written at once",
                again="run the same command again",
            ),
            held_file("export") as raw,
        ):
            file = HashedFile(raw)
            yield file
            raw.flush()
            self.store.put_file(key, raw.name)
        self._note(key, file.nbytes, file.sha256)

    @contextmanager
    def path(self, key: str) -> Iterator[str]:
        """Put the file written at the yielded path; nothing if the block raises. Raises: StoreError."""
        with self.file(key) as file, held_folder("export") as folder:
            path = os.path.join(folder, "file")
            yield path
            with open(path, "rb") as written:
                while piece := written.read(2**20):
                    file.write(piece)

    def _note(self, key: str, nbytes: int, sha256: str) -> None:
        self.objects.append({"path": key, "nbytes": nbytes, "sha256": sha256})
