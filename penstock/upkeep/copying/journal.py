"""A migration's journal in the target: JSON lines, in objects that are written once.

    <folder><run>-<k>.jsonl            {"path", "nbytes", "sha256", "crc32c", "etag"}, a line per copied object
    <folder>manifest-<n>.parquet       the records of finished runs (plain prefixes)
    <folder>job-<id>.json              SHA-256 of a cluster job's description

At least one of sha256 and crc32c is "". etag: the source object's, or "" if not compared.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from threading import Thread
from types import TracebackType
from typing import Self

from loader.dataset.log.entries import DAMAGED
from loader.errors import AlreadyExists, Corrupt, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import Store
from loader.storage.disk.scratch import HeldFolder, on_scratch

from .items import KINDS, Copied, as_columns, from_columns

FOLDER = "migrations/"
LINES = 64
"""Lines per stored object."""
PIECE_ROWS = 100_000
"""Rows per stored piece of the manifest, about 5 MiB."""


_NAMES = ("path", "nbytes", *KINDS, "etag")


class Journal:
    """The records of copied objects, in a file in `scratch`. A context manager for one thread.

    Raises: Corrupt if an object in the journal's folder is neither lines nor a manifest.
    """

    def __init__(self, target: Store, folder: str = FOLDER, scratch: str | None = None) -> None:
        self._target = target
        self._folder = folder
        # The time only orders runs: the later run's line for a key is used.
        self._run = f"{time.time_ns() // 1000:016d}-{secrets.token_hex(4)}"
        self._count = 0
        self._lines: list[str] = []
        keys = sorted(info.key for info in target.list(folder))
        self._manifests = [key for key in keys if key.startswith(f"{folder}manifest-")]
        self._pieces = [key for key in keys if key.endswith(".jsonl")]
        self._jobs = [key for key in keys if key.startswith(f"{folder}job-")]
        # A run that ends merges or deletes its pieces: one that is there is of a killed run, or one at work.
        self.is_resumed = bool(self._pieces)
        self._has_news = False  # lines that are in no manifest
        self._scratch = scratch
        with self._on_scratch():
            self._file = HeldFolder("journal", scratch)
        # In a file: the records of a large prefix may not fit in memory.
        self._noted = sqlite3.connect(self._file.path / "noted.sqlite")
        try:
            with self._on_scratch():
                self._noted.executescript(
                    # A crash loses this file, and the next run builds it from the target: no journal, no fsync.
                    "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -8192;"
                    "CREATE TABLE noted (key TEXT PRIMARY KEY, nbytes INT, digest TEXT, etag TEXT) WITHOUT ROWID;"
                )
                # In this order: a later line replaces a manifest's row of the same key.
                for key in [*self._manifests, *self._pieces]:
                    rows = self._noted.executemany(
                        "INSERT OR REPLACE INTO noted VALUES (?, ?, ?, ?)", self._read(key)
                    )
                    self._has_news |= key in self._pieces and rows.rowcount > 0
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the local file. The target keeps the records."""
        self._noted.close()
        self._file.close()

    @property
    def newest_manifest(self) -> str:
        """Key of the manifest's last piece, or "" if there is no manifest."""
        return self._manifests[-1] if self._manifests else ""

    def begin(self) -> None:
        """Write an empty piece, by which the next run notices if this one is killed."""
        self._put(b"")

    def find(self, path: str) -> Copied | None:
        """Return an object's latest record, or None."""
        with self._on_scratch():  # SQLite may write one page to disk before it reads another
            row = self._noted.execute("SELECT * FROM noted WHERE key = ?", (path,)).fetchone()
        if row is None:
            return None
        return Copied(path=row[0], nbytes=row[1], digest=row[2], etag=row[3])

    def __len__(self) -> int:
        with self._on_scratch():
            return int(self._noted.execute("SELECT count(*) FROM noted").fetchone()[0])

    def add(self, copied: Copied) -> None:
        row = (copied.path, copied.nbytes, copied.digest, copied.etag)
        with self._on_scratch():
            self._noted.execute("INSERT OR REPLACE INTO noted VALUES (?, ?, ?, ?)", row)
        self._lines.append(json.dumps(dict(zip(_NAMES, as_columns(*row), strict=True))) + "\n")
        self._has_news = True
        # A kill loses only these lines: their objects are then recognized by size and ETag.
        if len(self._lines) >= LINES:
            self.flush()

    def add_job(self, id: str, sha256: str) -> None:
        """Record a submitted job and its description's SHA-256. Costs a request."""
        self._target.put(self._job(id), json.dumps({"sha256": sha256}).encode())
        self._jobs.append(self._job(id))

    def job(self, id: str) -> str:
        """Return the SHA-256 of a recorded job's description, or "". Costs a request."""
        key = self._job(id)
        try:
            data = self._target.get(key).data
        except ObjectNotFound:
            return ""
        try:
            return str(parse_json_object(data)["sha256"])
        except DAMAGED as error:
            raise self._damage_error(key, error) from error

    def flush(self) -> None:
        if self._lines:
            self._put("".join(self._lines).encode())
            self._lines = []

    def finish(self) -> None:
        """Delete the lines and job records, which are no longer needed."""
        self._target.delete_many([*self._pieces, *self._jobs])
        self._pieces = []
        self._jobs = []

    def will_keep(self) -> None:
        """Import what `keep` needs (0.2 s) in the background, during the copy."""
        Thread(target=import_module, args=(".copied_table", __package__)).start()

    def keep(self) -> None:
        """Merge all lines into a manifest, sorted by key, in pieces; another run's later lines stay."""
        self.flush()
        if not self._has_news:
            self._target.delete_many(self._pieces)
            self._pieces = []
            return
        from .copied_table import to_parquet

        # Deleted after the new pieces are written: a kill in between leaves both, with equal rows.
        before = [*self._manifests, *self._pieces, *self._jobs]
        number = len(self._manifests)
        if self._manifests:
            number = int(self._manifests[-1].removesuffix(".parquet")[-12:])
        new_keys = []
        for batch in self._in_order():
            data = to_parquet(batch)
            number = number + 1
            while True:
                key = f"{self._folder}manifest-{number:012d}.parquet"
                try:
                    self._target.put_if_absent(key, data)
                    break
                # Another run merged its records at the same time: the numbers only order the pieces.
                except AlreadyExists:
                    number += 1
            new_keys.append(key)
        # Only now: a kill in between leaves both, with the same records.
        self._target.delete_many([key for key in before if key not in new_keys])
        self._manifests = new_keys
        self._pieces = []
        self._jobs = []
        self._has_news = False

    def _in_order(self) -> Iterator[list[tuple[str, int, str, str]]]:
        with self._on_scratch():
            rows = self._noted.execute("SELECT * FROM noted ORDER BY key")
        while True:
            with self._on_scratch():
                batch = rows.fetchmany(PIECE_ROWS)
            if not batch:
                return
            # Outside: an error of the consumer is none of the scratch disk.
            yield batch

    def _read(self, key: str) -> Iterator[tuple[str, int, str, str]]:
        data = self._target.get(key).data
        try:
            if key.endswith(".parquet"):
                from .copied_table import from_parquet

                yield from from_parquet(data)
            else:
                for line in data.splitlines():
                    row = parse_json_object(line)
                    # Earlier releases wrote neither crc32c nor etag.
                    digest = from_columns(row["sha256"], row.get("crc32c"))
                    yield row["path"], row["nbytes"], digest, row.get("etag", "")
        except (*DAMAGED, OSError) as error:
            raise self._damage_error(key, error) from error

    def _damage_error(self, key: str, error: Exception) -> Corrupt:
        return Corrupt(
            f"{self._target.url}/{key} is not what a migration wrote ({error}): it was edited; delete that "
            "object: the next run recognizes its copies by size",
            what="record of a migration",
            where=f"{self._target.url}/{key}",
            given=str(error),
        )

    def _job(self, id: str) -> str:
        return f"{self._folder}job-{id}.json"

    def _on_scratch(self) -> AbstractContextManager[None]:
        meanwhile = "while it was noted what was copied; what was copied is not lost"
        return on_scratch(
            self._scratch,
            meanwhile,
            room_for="the names of the objects",
            again="run the same command again",
            option="--scratch",
        )

    def _put(self, data: bytes) -> None:
        key = f"{self._folder}{self._run}-{self._count:06d}.jsonl"
        self._target.put_if_absent(key, data)
        self._pieces.append(key)
        self._count += 1
