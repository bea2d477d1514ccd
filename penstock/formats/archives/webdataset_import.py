"""Import compressed WebDataset archives. A sample's members must be consecutive."""

import re
from collections.abc import Iterator
from functools import partial

from loader.dataset.columnar.json_members import FIELD, MOST_BYTES, JsonColumns, JsonMembers
from loader.errors import Corrupt, InvalidSample
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ByteStream, opened
from ..reading.sample import NO_METADATA
from .tar_headers import BLOCK_BYTES, members
from .webdataset_registered import named

OPTIONS = frozenset[str]()
SAMPLE_BYTES = 2**30
"""Limit on a sample in memory, in bytes."""
_ENDING = re.compile(r"\.(?:tar\.(gz|bz2|xz|zst)|(tgz|tbz2|txz))$")
_CODECS = {"gz": "gzip", "tgz": "gzip", "tbz2": "bz2", "txz": "xz", "zst": "zstd"}
"""File name ending -> Arrow's name for the compression, if it differs."""


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the compressed archives, with one `ImportRun` each."""
    archives, members = [info for info in infos if _ENDING.search(info.key.lower())], JsonMembers()
    members.leave_out(options.without)
    read = partial(_samples, store, members)
    return Readable(archives, lambda info: [ImportRun(info, nbytes=info.nbytes)], read, members=members)


def _samples(store: Store, members: JsonMembers, run: ImportRun) -> Iterator[ReadSample]:
    match = _ENDING.search(run.info.key.lower())
    ending = match[match.lastindex or 0] if match else ""
    with opened(store, run.info) as file:
        yield from samples_in(
            ByteStream(file, _CODECS.get(ending, ending), run.info.nbytes), members.columns()
        )


def samples_in(stream: ByteStream, columns: JsonColumns | None = None) -> Iterator[ReadSample]:
    """Yield an archive's samples in one forward pass. columns: parses JSON members into metadata; None skips them."""
    key, fields, held, before = "", dict[str, bytes](), 0, set[str]()
    metadata = NO_METADATA
    blocks = _Blocks(stream)
    for member in members(blocks.read, stream.most, stream.name):
        if (key_and_field := named(member.name)) is None:
            continue
        where = f"{stream.name}, byte {member.header} of the archive"
        if key_and_field[0] != key or not fields:
            if fields:
                yield ReadSample(key, fields, metadata)
            key, fields, held, metadata = key_and_field[0], {}, 0, NO_METADATA
            if key in before:
                raise InvalidSample(
                    f"{where}: members of sample {key!r} lie apart; unpack the archive, and import it as webdataset"
                )
            before.add(key)
        field = key_and_field[1].lower()
        held += member.nbytes
        if held > SAMPLE_BYTES:
            raise InvalidSample(
                f"{where}: sample {key!r} has more than {SAMPLE_BYTES:,} bytes; unpack the archive, and import it as "
                "webdataset"
            )
        if field in fields:
            raise InvalidSample(
                f"{where}: member {member.name!r} is there twice: webdataset refuses such an archive too. Write it "
                "again with one of them"
            )
        fields[field] = data = blocks.read(member.offset, member.nbytes)
        if field == FIELD and columns is not None:
            metadata = columns.row(data if len(data) <= MOST_BYTES else None, stream.name, member.offset)
    stream.skip(stream.most)  # reaches the checksum of the compressed stream
    if fields:
        yield ReadSample(key, fields, metadata)


class _Blocks:
    """Reads at increasing offsets; keeps the last header, because the end check reads it again."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._at, self._header = stream, 0, b""

    def read(self, offset: int, nbytes: int) -> bytes:
        if self._header and offset == self._at:
            return self._header + self._stream.read(nbytes - BLOCK_BYTES)
        self._stream.skip(offset - self._stream.at)
        data = self._stream.read(nbytes) if self._stream.at == offset else b""
        if len(data) < nbytes:
            raise Corrupt(
                f"{self._stream.name}, byte {offset} of the archive: it is cut, {len(data):,} of {nbytes:,} bytes are "
                "there"
            )
        self._at, self._header = offset, data if nbytes == BLOCK_BYTES else b""
        return data
