"""Import robomimic: HDF5 files in which each demonstration is a sample.

data/<demo>/actions, obs/<name> ...   arrays [steps, ...]: the fields actions.npy, obs.<name>.npy
attributes of data/<demo> and data    the field episode.json
mask/<name>                           names of demonstrations: the column `masks`, and the split
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np

from loader.errors import Changed, Corrupt, InvalidSample, MissingDependency, NotSupported, StoreError
from loader.limits import MAX_MASK_BYTES, limit_message
from loader.modalities.fields import is_machine_fault
from loader.modalities.row_blocks import with_row_blocks
from loader.storage import ObjectInfo, Store

from ..importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ObjectFile
from ..reading.stated_counts import MOST_NAMED, StatedCounts

OPTIONS = frozenset[str]()
RUN_BYTES = 64 * 2**20
"""Approximate bytes of demonstrations read per opening of a file."""
MAX_DEMO_BYTES = 2**32 - 2 * RUN_BYTES
"""Largest demonstration, in bytes: HDF5 can declare any shape, and a worker replies with at most 4 GiB."""
MAX_DEPTH = 8
"""Deepest group in a demonstration."""
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_ENDINGS = (".hdf5", ".h5")


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the HDF5 files. Raises: MissingDependency if h5py is not installed."""
    _h5py()  # here, a missing package is one error, not one for each file
    files = [info for info in infos if info.key.lower().endswith(_ENDINGS)]
    stated = StatedCounts(options.allow_missing)
    return Readable(
        files, partial(_runs, store, options, stated), partial(_samples, store, options), stated=stated
    )


def _runs(
    store: Store, options: ColumnarOptions, stated: StatedCounts, info: ObjectInfo
) -> Iterator[ImportRun]:
    with _open_file(store, info) as (file, where):
        data = _group(file, "data", where)
        _compare_masks(file, data, where, stated)
        first = 0
        stop = 0
        nbytes = 0
        n_steps = 0
        for stop, name in enumerate(_demos(data), 1):
            demo = _group(data, name, where)
            arrays = [array for _, array in _arrays(demo, options, f"{where}, {name}")]
            size = sum(array.nbytes for array in arrays)
            n_steps += max((array.shape[0] for array in arrays if array.shape), default=0)
            if size > MAX_DEMO_BYTES:
                raise InvalidSample(
                    f"{where}, {name} has {size:,} bytes, more than {MAX_DEMO_BYTES:,}; cut the demonstration, or "
                    "leave arrays out (--without FIELD)",
                    what="bytes",
                    where=f"{where}, {name}",
                    given=size,
                    accepted=MAX_DEMO_BYTES,
                )
            nbytes += size
            if nbytes >= RUN_BYTES:
                yield ImportRun(info, first, stop, nbytes)
                first = stop
                nbytes = 0
        if first < stop:
            yield ImportRun(info, first, stop, nbytes)
        total = _attributes(data).get("total")
        if type(total) is int and n_steps:
            stated.compare(f"{where}, in the attribute 'total' of data,", "steps", total, n_steps)


def _compare_masks(file: Any, data: Any, where: str, stated: StatedCounts) -> None:
    demos = set(data)
    for name, members in sorted(_masks(file, where).items()):
        missing = sorted(members - demos)
        if missing:
            names = ", ".join(missing[:MOST_NAMED])
            n_there = len(members) - len(missing)
            stated.compare(f"{where}, mask {name!r},", "demonstrations", len(members), n_there, names)


def _samples(store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
    with _open_file(store, run.info) as (file, where):
        data = _group(file, "data", where)
        masks = _masks(file, where)
        shared = _attributes(data)
        for name in _demos(data)[run.first : run.stop]:
            demo = _group(data, name, where)
            at = f"{where}, {name}"
            fields = dict[str, bytes]()
            steps = set[int]()
            for field, array in _arrays(demo, options, at):
                fields[field] = _npy(array)
                # A scalar has no steps: -1 differs from every number of steps.
                steps.add(array.shape[0] if array.shape else -1)
            attributes = _attributes(demo)
            declared = attributes.get("num_samples")
            if len(steps) > 1 or (isinstance(declared, int) and steps - {declared}):
                raise InvalidSample(
                    f"{at} has arrays of {sorted(steps)} steps, and num_samples = {declared}: all are of the same "
                    "steps; repair the demonstration, or leave arrays out (--without FIELD)",
                    what="steps",
                    where=at,
                    given=sorted(steps),
                    accepted=declared,
                )
            if "episode.json" not in options.without:
                attributes_of = {"demo": attributes, "data": shared}
                fields["episode.json"] = json.dumps(
                    attributes_of, sort_keys=True, separators=(",", ":")
                ).encode()
            named = sorted(mask for mask, members in masks.items() if name in members)
            metadata = {"episode_id": name, "n_steps": max(steps, default=0), "masks": named or None}
            splits = [_SPLITS[mask] for mask in named if mask in _SPLITS]
            yield ReadSample(
                f"{run.info.key.rpartition('.')[0]}/{name}",
                with_row_blocks(fields),
                {column: value for column, value in metadata.items() if column not in options.without},
                {"split": splits[0]} if len(splits) == 1 else {},
            )


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingDependency(
            "robomimic files are read by h5py: pip install 'penstock-data[robomimic]'", what="h5py"
        ) from error
    return h5py


@contextmanager
def _open_file(store: Store, info: ObjectInfo) -> Iterator[tuple[Any, str]]:
    # HDF5 jumps between its trees and its data.
    with ObjectFile(store, info, scattered=True) as stream:
        where = stream.path
        try:
            with _h5py().File(stream, "r") as file:
                yield file, where
        except (Changed, StoreError, InvalidSample, Corrupt):
            raise
        except TypeError as error:  # h5py's for types such as bit fields
            if "NumPy equivalent" not in str(error):
                raise
            raise NotSupported(
                f"{where} has values that NumPy does not have: {error}",
                what="values",
                where=where,
                given=error,
            ) from error
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            if is_machine_fault(error):
                raise
            raise Corrupt(
                f"{where} is not a valid HDF5 file: {error}; repair it, or move it elsewhere",
                what="file",
                where=where,
                given=type(error).__name__,
                accepted="HDF5",
            ) from error


def _member(group: Any, name: str, where: str) -> Any:
    """Return a group's member. Raises: InvalidSample for a link."""
    if not isinstance(group.get(name, getlink=True), _h5py().HardLink):
        raise InvalidSample(
            f"{where}: {name!r} is a link, which may lead out of the file; write its data instead",
            what=name,
            where=where,
            given="a link",
        )
    return group[name]


def _group(group: Any, name: str, where: str) -> Any:
    member = None
    if name in group:
        member = _member(group, name, where)
    if not isinstance(member, _h5py().Group):
        raise InvalidSample(
            f"{where} has no group {name!r}, in which robomimic keeps demonstrations",
            what=name,
            where=where,
            accepted="a group",
        )
    return member


def _demos(data: Any) -> list[str]:
    def number(name: str) -> tuple[int, str]:
        match = re.search(r"(\d{1,18})$", name)
        return int(match[1]) if match else -1, name

    # By number: demo_10 follows demo_9.
    return sorted(data, key=number)


def _arrays(
    group: Any, options: ColumnarOptions, where: str, front: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    h5py = _h5py()
    if depth > MAX_DEPTH:
        raise InvalidSample(
            f"{where} has groups within groups, more than {MAX_DEPTH}",
            what="groups",
            where=where,
            given=depth,
            accepted=MAX_DEPTH,
        )
    for name in sorted(group):
        member = _member(group, name, where)
        if isinstance(member, h5py.Group):
            yield from _arrays(member, options, where, f"{front}{name}.", depth + 1)
            continue
        field = f"{front}{name}.npy"
        if field in options.without:
            continue
        if not isinstance(member, h5py.Dataset) or member.dtype.kind not in "biuf":
            raise InvalidSample(
                f"{where}: {member.name} is not an array of numbers; leave it out (--without {field})",
                what=member.name,
                where=where,
                accepted="an array of numbers",
            )
        _check_inside(member, where)
        yield field, member


def _check_inside(array: Any, where: str) -> None:
    """Raise InvalidSample for bytes in another file."""
    if array.is_virtual or array.external:
        raise InvalidSample(
            f"{where}: {array.name} has its bytes in another file; write them into this one",
            what=array.name,
            where=where,
            given="bytes in another file",
        )


def _npy(array: Any) -> bytes:
    values = array[()]
    plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    file = BytesIO()
    # `ascontiguousarray` gave a scalar an axis.
    np.save(file, plain.reshape(array.shape), allow_pickle=False)
    return file.getvalue()


def _masks(file: Any, where: str) -> dict[str, frozenset[str]]:
    if "mask" not in file:
        return {}
    masks = _group(file, "mask", where)
    return {name: _members(_member(masks, name, where), where) for name in masks}


def _members(mask: Any, where: str) -> frozenset[str]:
    if not isinstance(mask, _h5py().Dataset) or mask.dtype.kind not in "SO":
        raise InvalidSample(
            f"{where}: {mask.name} is not a list of names of demonstrations",
            what=mask.name,
            where=where,
            accepted="a list of names",
        )
    _check_inside(mask, where)
    if mask.nbytes > MAX_MASK_BYTES:
        raise InvalidSample(
            f"{where}: {limit_message(mask.name, mask.nbytes, 'bytes', MAX_MASK_BYTES)}",
            what=mask.name,
            where=where,
            given=mask.nbytes,
            accepted=MAX_MASK_BYTES,
        )
    return frozenset(_text(one) for one in mask[()].ravel().tolist())


def _attributes(group: Any) -> Mapping[str, Any]:
    return {name: _plain(value) for name, value in sorted(group.attrs.items())}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has neither NaN nor infinity
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return repr(value)


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value
