"""Registered objects that leave as they came: a version that holds all of them, and no more, is their copy.

Objects are read as they were registered: one that was written since is `Changed`. An index beside them is copied too,
and the copy is looked at as its format is: it has to tell of these objects.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

from loader import Version
from loader.dataset.columnar.choices import NO_OPTIONS
from loader.errors import Changed, ObjectNotFound
from loader.foreign import COMPANIONS, look_at
from loader.foreign.formats.exported import NOTE
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Span, Store
from loader.storage.placed import FOREIGN, PlacedObject, PlacedStore

from ..export_journal import FOLDER
from ..exporter import Loss
from ..outbox import Outbox
from ..selection import Selection, WorkUnit

READ_BYTES = 8 * 2**20
"""Bytes of an object that are read at once."""
OWN = "megatron"
"""Format whose exporter makes the same objects again, index and all."""


def leaves_as_it_came(version: Version, format: str) -> bool:
    """Return whether a version is all of the objects that were registered in this format, and nothing else."""
    told, manifest = version.manifest["producer"].get("registered") or {}, version.manifest
    return (
        told.get("format") == format != OWN
        and not told.get("without")
        and manifest["n_live"] == manifest["n_rows"]
        and {file["group"] for file in manifest["samples"]} <= {"keys", "metadata"}  # nobody annotated it
        and pc.all(pc.starts_with(version.parts.shard_rows()["path"], FOREIGN)).as_py()
        and not (format in COMPANIONS and _placed(version).is_adopted(_paths(version)[0]))
    )


class RegisteredObjects:
    """An exporter of such a version."""

    def __init__(self, format: str) -> None:
        self._format = format

    def losses(self, selection: Selection) -> list[Loss]:
        """Return nothing: the bytes stay."""
        return []

    def units(self, selection: Selection) -> list[WorkUnit]:
        """Return the samples of each registered shard, which is an object or a run of them."""
        parts, out = selection.version.parts, list[WorkUnit]()
        paths = _paths(selection.version)
        first = [at for at, path in enumerate(paths) if at == 0 or path != paths[at - 1]]
        for begin, end in pairwise([*first, len(paths)]):
            ordinals = np.arange(parts.first_ordinal[begin], parts.first_ordinal[end])
            out.append(WorkUnit(number=len(out), fields=(), ordinals=ordinals))
        return out

    def write(self, selection: Selection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
        """Put the objects of a shard. Raises: Changed; StoreError."""
        placed = _placed(selection.version)
        position = int(np.searchsorted(selection.version.parts.first_ordinal, unit.ordinals[0], "right")) - 1
        objects = placed.objects(_paths(selection.version)[position])
        for one in objects:
            with outbox.file(one.key) as file:
                for start in range(0, one.nbytes, READ_BYTES):
                    file.write(placed.stored(one, Span(start, min(READ_BYTES, one.nbytes - start))))
        return {"objects": [[one.key, one.nbytes] for one in objects]}

    def finish(self, selection: Selection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Put the index of the objects, where the format has one. Raises: Changed where it tells of others."""
        if self._format not in COMPANIONS:
            return
        objects = {key: nbytes for unit in facts for key, nbytes in unit["objects"]}
        source = next(_objects(selection.version)).store
        for info in source.list():
            if COMPANIONS[self._format].search(info.key):
                _copy(source, info, outbox)
        listed = [info for info in outbox.store.list() if not info.key.startswith(FOLDER)]
        found, _ = look_at(self._format, outbox.store, listed, NO_OPTIONS)
        if {info.key: info.nbytes for info in found.infos} != objects:
            raise Changed(
                f"the index of {source.url} tells of other objects than the {len(objects)} that were registered: "
                "register the place again"
            )


def note_of(version: Version) -> dict[str, Any] | None:
    """Return what an export's note says of fields and columns, where the objects are one; else None."""
    source = next(_objects(version)).store
    try:
        note = parse_json_object(source.get(NOTE).data)
    except ObjectNotFound:
        return None
    return {name: note[name] for name in ("columns", "facts", "fields", "lost") if name in note}


def _copy(source: Store, info: ObjectInfo, outbox: Outbox) -> None:
    with outbox.file(info.key) as file:
        for start in range(0, info.nbytes, READ_BYTES):
            nbytes = min(READ_BYTES, info.nbytes - start)
            file.write(source.get_range(info.key, start, nbytes, info.etag or None).data)


def _paths(version: Version) -> list[str]:
    """Return the path of the shard that each part lies in."""
    rows = version.parts.shard_rows()
    found = dict(zip(rows["part"].to_pylist(), rows["path"].to_pylist(), strict=True))
    return [found[part] for part in version.parts.ids.to_pylist()]


def _objects(version: Version) -> Iterator[PlacedObject]:
    for path in dict.fromkeys(_paths(version)):
        yield from _placed(version).objects(path)


def _placed(version: Version) -> PlacedStore:
    store = version.shard_store
    assert isinstance(store, PlacedStore), version.name
    return store
