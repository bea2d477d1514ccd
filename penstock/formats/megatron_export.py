"""Export Megatron's indexed datasets: `<prefix>.bin` with tokens, and `<prefix>.idx`.

Registered documents keep their file names; otherwise each part becomes a pair of files.
"""

import io
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader.dataset.versions.samples_table import import_polars
from loader.errors import InvalidSample, LossyExport

from .export_selection import ExportSample, ExportSelection, WorkUnit
from .exporter import Loss, Outbox
from .megatron_registered import DTYPES, LENGTHS, MAGIC, MODES

_CODES = {word: code for code, word in DTYPES.items()}
_NPY = "npy"
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileUnit(WorkUnit):
    stem: str
    is_file: bool


class _MegatronIndex:
    def __init__(self, word: str) -> None:
        self.word = word
        self._lengths, self._bounds, self._modes = array("i"), array("q", [0]), array("b")

    def add(self, lengths: Sequence[int], modes: Sequence[int]) -> None:
        """Add a document. lengths, modes: one number per sequence; modes may be empty."""
        self._lengths.extend(lengths)
        self._modes.extend(modes)
        self._bounds.append(len(self._lengths))

    def write(self, outbox: Outbox, key: str) -> None:
        lengths = np.array(self._lengths, "<i4")
        ends = np.cumsum(lengths.astype("<i8") * int(self.word[1:]))
        with outbox.file(key) as file:
            file.write(MAGIC + np.uint64(1).tobytes() + bytes([_CODES[self.word]]))
            file.write(np.array([len(lengths), len(self._bounds)], "<u8").tobytes())
            file.write(lengths.tobytes())
            file.write(np.concatenate([[0], ends])[: len(lengths)].astype("<i8").tobytes())
            file.write(np.array(self._bounds, "<i8").tobytes())
            file.write(self._modes.tobytes())


def losses(selection: ExportSelection) -> list[Loss]:
    """Return everything but the tokens as losses. Raises: LossyExport if the token field is ambiguous."""
    files, tokens = _units(selection), _token_fields(selection)
    out = [
        Loss(f"field {name!r}", "Megatron holds tokens: it is left out")
        for name in selection.fields
        if name not in tokens
    ]
    if lacking := selection.n_samples - sum(len(unit.ordinals) for unit in files):
        out.append(Loss(f"{lacking} samples", f"they have no field {', '.join(tokens)}: they are left out"))
    held = {LENGTHS, MODES} | ({"raw_key"} if files[0].is_file else set())
    out += [
        Loss(f"column {name!r}", "Megatron has no columns: it is left out")
        for name in selection.columns
        if name not in held
    ]
    if not _numbered(selection, files):
        out.append(Loss("keys", "Megatron counts documents: their numbers are other keys"))
    return out


def units(selection: ExportSelection) -> list[WorkUnit]:
    return [*_units(selection)]


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Write a pair of files. Raises: InvalidSample if Megatron cannot represent a document."""
    assert isinstance(unit, _FileUnit)
    index: _MegatronIndex | None = None
    with outbox.file(f"{unit.stem}.bin") as file:
        for number, sample in enumerate(selection.samples(unit)):
            word, values = _tokens(sample, unit.fields[0])
            if index is None:
                index, has_modes = _MegatronIndex(word), MODES in sample.columns
            if word != index.word:
                raise _refused(sample, f"is of {word}, and those before it are of {index.word}")
            if (MODES in sample.columns) != has_modes:
                raise _refused(sample, f"and the {number} before it: some have {MODES}, some have not")
            index.add(*_sequences(sample, len(values)))
            file.write(values.tobytes())
    assert index is not None
    index.write(outbox, f"{unit.stem}.idx")
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write nothing: each pair of files is complete."""


def _token_fields(selection: ExportSelection) -> list[str]:
    names = [name for name in selection.fields if name.rpartition(".")[2] in (*_CODES, _NPY)]
    if not names:
        raise LossyExport(
            f"megatron holds one field of tokens, such as tokens.u2 ({', '.join(sorted(_CODES))}, or {_NPY} of one "
            f"dimension), and {selection.version.name} has none"
        )
    return names


def _units(selection: ExportSelection) -> list[_FileUnit]:
    tokens, pieces = _token_fields(selection), list[tuple[str, Any]]()
    for unit in selection.by_part():
        own = [name for name in unit.fields if name in tokens]
        if len(own) > 1 and len(unit.ordinals):
            raise LossyExport(
                f"megatron holds one field of tokens, and samples of {selection.version.name} have {', '.join(own)}: "
                "leave all but one out (--without)"
            )
        if own and len(unit.ordinals):
            pieces.append((own[0], unit.ordinals))
    names, out = _files(selection, pieces), list[_FileUnit]()
    for at, (field, ordinals) in enumerate(pieces):
        if names and at and names[at] == names[at - 1]:
            last = out.pop()
            ordinals = np.concatenate([last.ordinals, ordinals])
        stem = names[at].removesuffix(".bin") if names else f"{len(out):06d}"
        out.append(
            _FileUnit(number=len(out), fields=(field,), ordinals=ordinals, stem=stem, is_file=bool(names))
        )
    return out


def _files(selection: ExportSelection, pieces: Sequence[tuple[str, Any]]) -> list[str]:
    names = list[str]()
    if "raw_key" not in selection.columns:
        return []
    for _, ordinals in pieces:
        origins = selection.frame["raw_key"].gather(ordinals)
        if origins.null_count() or origins.n_unique() > 1 or not origins[0].endswith(".bin"):
            return []
        names.append(origins[0])
    changes = [at for at, name in enumerate(names) if not at or names[at - 1] != name]
    return names if len({names[at] for at in changes}) == len(changes) else []


def _numbered(selection: ExportSelection, files: Sequence[_FileUnit]) -> bool:
    pl = import_polars()
    keys = selection.version.samples().select("key").collect()["key"]
    for unit in files:
        numbers = pl.Series(np.arange(len(unit.ordinals))).cast(pl.String)
        expected = f"{unit.stem}/" + numbers if len(files) > 1 else numbers
        if (keys.gather(unit.ordinals) != expected).any():
            return False
    return True


def _tokens(sample: ExportSample, field: str) -> tuple[str, Any]:
    data, word = sample.fields[field], field.rpartition(".")[2]
    if word != _NPY:
        if len(data) % int(word[1:]):
            raise _refused(sample, f"has {len(data)} bytes, no whole values of {word}")
        return word, np.frombuffer(data, f"<{word}")
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise _refused(sample, f"is no npy: {error}") from error
    word = f"{array.dtype.kind}{array.dtype.itemsize}"
    if array.ndim != 1 or word not in _CODES:
        raise _refused(sample, f"is of {array.dtype}, of {array.ndim} dimensions")
    return word, array.astype(f"<{word}")


def _sequences(sample: ExportSample, n: int) -> tuple[Sequence[int], Sequence[int]]:
    lengths, modes = sample.columns.get(LENGTHS, [n]), sample.columns.get(MODES, [])
    for name, values, low, high in ((LENGTHS, lengths, 0, _MOST), (MODES, modes, -128, 127)):
        if not isinstance(values, list) or not all(type(v) is int and low <= v <= high for v in values):
            raise _refused(
                sample, f"with {name} {str(values)[:80]}: leave the column out (--without), or cut it"
            )
    if sum(lengths) != n or (MODES in sample.columns and len(modes) != len(lengths)):
        raise _refused(
            sample,
            f"has {n} values, and its {LENGTHS} and {MODES} are of others: leave these out (--without)",
        )
    return lengths, modes


def _refused(sample: ExportSample, what: str) -> InvalidSample:
    return InvalidSample(f"document {sample.key!r} {what}; Megatron cannot hold it")
