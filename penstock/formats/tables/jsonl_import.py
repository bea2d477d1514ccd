"""Import JSON lines, plain or compressed (.gz, .zst): each line is an object, its members are columns."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from loader.errors import InvalidSample
from loader.storage import ObjectInfo, Store

from ..importing.importer import ImportRun, Options, Readable, ReadSample
from ..reading.object_file import opened
from .text_rows import COMPRESSED, lines, sample_of

OPTIONS = frozenset({"key", "fields"})
_ENDINGS = tuple(f"{name}{more}" for name in (".jsonl", ".ndjson") for more in ("", *COMPRESSED))


def find_objects(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the objects with such endings. An object is one run, read from beginning to end."""
    files = [info for info in infos if info.key.lower().endswith(_ENDINGS)]
    return Readable(
        files, lambda info: [ImportRun(info, nbytes=info.nbytes)], partial(_samples, store, options)
    )


def _samples(store: Store, options: Options, run: ImportRun) -> Iterator[ReadSample]:
    with opened(store, run.info) as file:
        for row, line in enumerate(lines(file)):
            if row == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line and not line.isspace():
                yield sample_of(_parsed(line, f"{run.info.key}, row {row}"), options, run.info.key, row)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        values = DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidSample(f"{where} is not JSON: {error}; repair the line") from error
    if not isinstance(values, dict):
        raise InvalidSample(f"{where} is a {type(values).__name__}, not an object with columns")
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has one name twice")
    return members


DECODER = json.JSONDecoder(object_pairs_hook=_object)
