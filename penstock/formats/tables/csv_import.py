"""Import CSV, uncompressed or compressed: the first line names the columns, and values are text."""

import csv
from collections.abc import Iterator
from functools import partial

from loader.errors import InvalidSample
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import opened
from .jsonl_import import COMPRESSED, lines, sample_of

OPTIONS = frozenset({"key", "fields"})
_ENDINGS = tuple(f".csv{more}" for more in ("", *COMPRESSED))


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the CSV objects, one run each."""
    files = [info for info in infos if info.key.lower().endswith(_ENDINGS)]
    return Readable(
        files, lambda info: [ImportRun(info, nbytes=info.nbytes)], partial(_samples, store, options)
    )


def _samples(store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
    name = run.info.key
    with opened(store, run.info) as file:
        rows = csv.reader((line.decode("utf-8-sig") + "\n" for line in lines(file)), strict=True)
        row = -1
        try:
            columns = next(rows, [])
            if len(set(columns)) < len(columns):
                raise InvalidSample(f"{name} has two columns of one name: {', '.join(columns)}")
            for row, values in enumerate(rows):
                if len(values) != len(columns):
                    raise InvalidSample(
                        f"{name}, row {row} has {len(values)} values, and {len(columns)} columns"
                    )
                values_of = {column: value or None for column, value in zip(columns, values, strict=True)}
                yield sample_of(values_of, options, name, row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidSample(f"{name}, row {row + 1} is not CSV in UTF-8: {error}; repair it") from error
