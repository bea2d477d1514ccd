"""sqlite:///folder/objects.db: objects in one SQLite file."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from loader.errors import AlreadyExists, ObjectNotFound, Transient
from loader.storage import Blob, ObjectInfo, Store, StoreSpec
from loader.storage.key_value import KeyValueStore, check_key, check_prefix

TABLE = (
    "CREATE TABLE IF NOT EXISTS objects (etag INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, data BLOB)"
)


class SqliteStore(KeyValueStore):
    """Keep an object as a row. A write makes a new row, and its number is the change token."""

    def ask(self, sql: str, *values: Any) -> Sequence[Any]:
        try:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite://"), timeout=60)) as file, file:
                file.execute(TABLE)
                return file.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            raise Transient(f"{self.url}: {error}") from error

    def get(self, key: str) -> Blob:
        for etag, data in self.ask("SELECT etag, data FROM objects WHERE key = ?", check_key(key)):
            return Blob(data, str(etag))
        raise ObjectNotFound(f"{self.url}/{key}: there is no such object")

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.ask("INSERT OR REPLACE INTO objects (key, data) VALUES (?, ?)", check_key(key), bytes(data))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        self.ask("INSERT OR IGNORE INTO objects (key, data) VALUES (?, ?)", check_key(key), bytes(data))
        if self.get(key).data != data:
            raise AlreadyExists(f"{self.url}/{key}: the key holds another object")

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        sql = (
            "SELECT key, length(data), etag FROM objects WHERE key > ? AND substr(key, 1, ?) = ? ORDER BY key"
        )
        for key, nbytes, etag in self.ask(sql, start_after or "", len(prefix), check_prefix(prefix)):
            yield ObjectInfo(key=key, nbytes=nbytes, etag=str(etag))

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.ask("DELETE FROM objects WHERE key = ?", check_key(key))


def open_sqlite(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    return SqliteStore(spec, url)
