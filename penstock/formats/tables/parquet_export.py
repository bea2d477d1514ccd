"""Parquet exports with Hugging Face features: one file per part, one row per sample.

The schema's metadata `penstock` maps columns to fields for imports.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.tables.columns import SOURCE_COLUMNS, type_named
from loader.errors import InvalidSample
from loader.json_text import canonical_json

from ...class_names import class_names_of
from ..exporter import ExportSample, ExportSelection, HashedFile, Loss, Outbox, WorkUnit

KEY = "key"
GROUP_BYTES, GROUP_ROWS = 32 * 2**20, 1024
"""Limits on a row group; a sample larger than the first is a group by itself."""
MEDIA = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "img", "gif", "tif"), "Image"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus"), "Audio"),
}
"""Field name's last word -> Hugging Face feature that decodes it."""
_FLAT = {f"{kind}{n}": np.dtype(f"{kind}{n}").name for kind in "ui" for n in (1, 2, 4, 8)} | {
    f"f{n}": f"float{8 * n}" for n in (2, 4, 8)
}
_MEDIA_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16"}


def losses(selection: ExportSelection) -> list[Loss]:
    """Return none: colliding columns are renamed, and the file records this."""
    return []


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Write one part's file. Raises: InvalidSample if a field's bytes do not fit its name."""
    columns = _ExportColumns(selection)
    with outbox.file(f"data/train-{unit.number:05d}.parquet") as file:
        sink = pa.PythonFile(_Sink(file), "w")
        with pq.ParquetWriter(sink, columns.schema, compression="zstd", use_dictionary=False) as writer:
            for samples in _groups(selection.samples(unit)):
                writer.write_table(columns.table(samples), row_group_size=len(samples))
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write nothing."""


class _ExportColumns:
    def __init__(self, selection: ExportSelection) -> None:
        self._fields = {name: name for name in selection.fields}
        in_use = set(self._fields)
        self._key = _free(KEY, in_use)
        self._columns = {name: _free(name, in_use) for name in selection.columns}
        self._labels = class_names_of(selection.version) if "cls" in selection.fields else None
        types = {self._key: pa.string()}
        types |= {column: self._type(name) for name, column in self._fields.items()}
        types |= {column: type_named(selection.columns[name]) for name, column in self._columns.items()}
        features = {column: _feature(kind) for column, kind in types.items()}
        for name, column in self._fields.items():
            if (medium := MEDIA.get(_word(name))) is not None:
                features[column] = {"_type": medium}
            elif _word(name) == "cls" and self._labels is not None:
                features[column] = {"_type": "ClassLabel", "names": self._labels}
        source = [name for name in self._columns if name in SOURCE_COLUMNS]
        ours = {
            "key": self._key,
            "fields": {column: name for name, column in self._fields.items()},
            "metadata": {column: name for name, column in self._columns.items() if name not in source},
            "source": {self._columns[name]: name for name in source},
        }
        self.schema = pa.schema(list(types.items())).with_metadata(
            {
                "huggingface": canonical_json({"info": {"features": features}}),
                "penstock": canonical_json(ours),
            }
        )

    def table(self, samples: Sequence[ExportSample]) -> pa.Table:
        arrays = [pa.array([sample.key for sample in samples], pa.string())]
        arrays += [
            pa.array([_value(sample, name) for sample in samples], self._type(name)) for name in self._fields
        ]
        for name, column in self._columns.items():
            kind = self.schema.field(column).type
            arrays.append(pa.array([sample.columns.get(name) for sample in samples], kind))
        return pa.table(arrays, schema=self.schema)

    def _type(self, name: str) -> pa.DataType:
        word = _word(name)
        if word in MEDIA:
            return _MEDIA_TYPE
        if word in _FLAT:
            return pa.list_(pa.from_numpy_dtype(np.dtype(word)))
        return {"txt": pa.string(), "json": pa.string(), "cls": pa.int64()}.get(word, pa.binary())


def _value(sample: ExportSample, name: str) -> Any:
    data, word = sample.fields.get(name), _word(name)
    if data is None:
        return None
    if word in MEDIA:
        return {"bytes": data, "path": f"{sample.key}.{name}"}
    why = ""
    if word in _FLAT:
        if len(data) % int(word[1:]) == 0:
            return np.frombuffer(data, f"<{word}")
        why = f"has {len(data)} bytes, no whole values"
    elif word in ("txt", "json"):
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            why = f"is no UTF-8 ({error})"
    elif word == "cls":
        number = int(data) if data.isdigit() and len(data) < 19 else -1
        if str(number).encode() == data:
            return number
        why = f"is {data[:20]!r}, no class number"
    if not why:
        return data
    raise InvalidSample(f"sample {sample.key!r}: {name} {why}; leave it out (--without {name})")


def _groups(samples: Iterable[ExportSample]) -> Iterable[list[ExportSample]]:
    held, nbytes = list[ExportSample](), 0
    for sample in samples:
        held.append(sample)
        nbytes += sum(map(len, sample.fields.values()))
        if nbytes >= GROUP_BYTES or len(held) == GROUP_ROWS:
            yield held
            held, nbytes = [], 0
    if held:
        yield held


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"_type": "List", "feature": _feature(kind.value_type)}
    return {"_type": "Value", "dtype": _NAMES.get(str(kind), str(kind))}


def _word(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _free(name: str, in_use: set[str]) -> str:
    """Return the name, with "_" appended while in use; add it to `in_use`."""
    while name in in_use:
        name += "_"
    in_use.add(name)
    return name


class _Sink:
    closed = False

    def __init__(self, file: HashedFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(memoryview(data))

    def tell(self) -> int:
        return self._file.nbytes

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the outbox closes the file."""
