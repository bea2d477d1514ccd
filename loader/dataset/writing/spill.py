"""Sort samples by key hash in bounded memory, so that a class-sorted import comes out shuffled.

Beyond `memory_bytes` samples go to 256 bucket files by the first byte of their hash. Reading sorts a bucket's headers
(about 150 bytes per sample) in memory. Large fields stay in their file until a shard takes them piece by piece.
"""

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from ...errors import DuplicateKey, StoreError
from ...storage.disk.scratch import HeldFolder, default_place, no_room
from ..names import key_hash
from ..shards.shard import LARGE_BYTES, Payload, load_payload, payload_bytes

_HEADER = struct.Struct("<16sIQ")
"""Before each sample in a file: key hash, size of its JSON, size of its fields."""
BUCKETS = 256
_OBJECT_BYTES = 512
"""Memory of a sample beside its fields, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    key: str
    fields: Mapping[str, Payload]
    """Field -> encoded bytes."""
    metadata: Mapping[str, Any]
    """Column -> value."""
    source: Mapping[str, Any]
    """Provenance (`columns.SOURCE_COLUMNS`)."""

    @property
    def nbytes(self) -> int:
        return sum(map(payload_bytes, self.fields.values()))


class SpilledField:
    """A large field in a bucket's file, which must stay open."""

    def __init__(
        self,
        file: BinaryIO,
        offset: int,
        nbytes: int,
    ) -> None:
        self._file = file
        self._offset = offset
        self.nbytes = nbytes

    def read_into(self, memory: memoryview, at: int) -> None:
        """Fill `memory` with the field's bytes from `at` on. Raises: StoreError."""
        while memory:
            try:
                # Not `seek` and `read`: `drain` moves the file's position between two pieces.
                n_read = os.preadv(self._file.fileno(), [memory], self._offset + at)
            except OSError as error:
                raise scratch_error("a spilled sample was read", self._file.name, error) from error
            if not n_read:
                raise StoreError(
                    f"{self._file.name}: spilled samples end early; write again",
                    what="spilled samples",
                    where=self._file.name,
                )
            memory = memory[n_read:]
            at += n_read


class Spill:
    """Collects samples and yields them once, in hash order. `close` removes all files.

    memory_bytes: of samples in memory, about. directory: where the files' folder is created; None takes the default.
    """

    def __init__(self, memory_bytes: int = 256 * 2**20, directory: str | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._parent = directory
        self._samples: dict[bytes, Sample] = {}
        """Key hash -> sample that is in no file so far."""
        self._nbytes = 0
        self._directory: HeldFolder | None = None
        self._files: dict[int, BinaryIO] = {}
        self.n_samples = 0

    def add(self, sample: Sample) -> None:
        """Add one sample. Its buffers must not change until it is spilled or read.

        Raises: DuplicateKey, at once or when read back; StoreError if the directory is full.
        """
        hashed = key_hash(sample.key)
        if hashed in self._samples:
            raise duplicate(sample.key)
        self._samples[hashed] = sample
        self._nbytes += sample.nbytes + _OBJECT_BYTES
        self.n_samples += 1
        if self._nbytes >= self._memory_bytes:
            self._flush()

    def drain(self) -> Iterator[Sample]:
        """Yield every sample in hash order, once. Raises: DuplicateKey; StoreError."""
        if self._directory is None:
            for hashed in sorted(self._samples):
                yield self._samples[hashed]
            return
        self._flush()
        # A bucket has the hashes of one first byte, so bucket after bucket is the order of all hashes.
        for bucket in range(BUCKETS):
            if bucket in self._files:
                yield from _read_bucket(self._files[bucket])

    def close(self) -> None:
        self._samples.clear()
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()  # a full disk fails the last flush; the file is deleted just below
        self._files.clear()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _flush(self) -> None:
        try:
            if self._directory is None:  # most imports fit into memory, and need no folder
                self._directory = HeldFolder("spill", self._parent)
            for hashed, sample in self._samples.items():
                self._write(hashed, sample)
            for file in self._files.values():
                file.flush()  # a full disk raises here, not when reading back
        except OSError as error:
            place = self._parent or default_place()
            if self._directory is not None:
                place = str(self._directory.path)
            raise scratch_error(f"sample {self.n_samples} was spilled", place, error) from error
        self._samples.clear()
        self._nbytes = 0

    def _write(self, hashed: bytes, sample: Sample) -> None:
        bucket = hashed[0]
        if bucket not in self._files:
            assert self._directory is not None
            path = str(self._directory.path / f"{bucket:02x}")
            self._files[bucket] = open(path, "w+b")  # noqa: SIM115 - open until `close`
        file = self._files[bucket]

        lengths = {field: payload_bytes(data) for field, data in sample.fields.items()}
        row = [sample.key, list(lengths.items()), dict(sample.metadata), dict(sample.source)]
        meta = json.dumps(row, ensure_ascii=False, default=_encode).encode("utf-8", "surrogatepass")
        file.write(_HEADER.pack(hashed, len(meta), sum(lengths.values())))
        file.write(meta)
        for data in sample.fields.values():
            file.write(load_payload(data))


def _encode(value: object) -> dict[str, str]:
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    raise TypeError(f"a {type(value).__name__} passed the writer's check")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        return datetime.fromisoformat(value["datetime"])
    return value


def _read_bucket(file: BinaryIO) -> Iterator[Sample]:
    headers = _read_headers(file)
    headers.sort()
    previous = b""
    for hashed, meta_start, meta_nbytes in headers:
        file.seek(meta_start)
        key, lengths, metadata, source = json.loads(file.read(meta_nbytes))
        if hashed == previous:
            raise duplicate(key)
        previous = hashed

        fields: dict[str, Payload] = {}
        at = meta_start + meta_nbytes
        for field, nbytes in lengths:
            if nbytes >= LARGE_BYTES:
                fields[field] = SpilledField(file, at, nbytes)
            else:
                file.seek(at)
                fields[field] = file.read(nbytes)
            at += nbytes
        decoded = {name: _decode(value) for name, value in metadata.items()}
        yield Sample(
            key=key,
            fields=fields,
            metadata=decoded,
            source=source,
        )


def _read_headers(file: BinaryIO) -> list[tuple[bytes, int, int]]:
    """Return (key hash, start of the JSON, its size) of each sample; the fields follow the JSON."""
    headers: list[tuple[bytes, int, int]] = []  # plain tuples: Python sorts them faster than any class
    at = 0
    end = file.seek(0, os.SEEK_END)
    while at < end:
        file.seek(at)
        hashed, meta_nbytes, fields_nbytes = _HEADER.unpack(file.read(_HEADER.size))
        at += _HEADER.size
        headers.append((hashed, at, meta_nbytes))
        at += meta_nbytes + fields_nbytes
    return headers


def scratch_error(
    when: str,
    path: str,
    error: OSError,
) -> StoreError:
    """Return the error for full or read-only temporary space. when: what was interrupted, for the message."""
    meanwhile = f"when {when}; nothing was published"
    return no_room(
        path,
        error,
        meanwhile,
        room_for="the whole import",
        again="write again",
    )


def duplicate(key: str, where: str = "this version") -> DuplicateKey:
    return DuplicateKey(
        f"key {key!r} comes twice in {where}; every sample of a version needs its own key. "
        "Prefix it with its source (e.g. 'robots/ep_31'), or drop one of the two",
        what="key",
        where=where,
        given=key,
    )
