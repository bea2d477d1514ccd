"""What a version, a place and a store hold, and an import by its options: what every test of formats asks."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.root import root_in_store
from loader.errors import PenstockError
from loader.storage import Store, open_store
from penstock.formats.content_digest import content_digest
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import ImportReport, import_place

NUMBER = itertools.count()
OF_PLACE = ("ordinal", "part", "row", "key", "raw_key", "raw_etag")
"""Columns that say where a sample lies."""


def contents(version: loader.Version) -> dict[str, tuple[dict[str, bytes], dict[str, Any]]]:
    """Key -> (field -> bytes, column -> value) of the live samples."""
    out, groups = {}, version.manifest["groups"]
    for row in version.samples().collect().to_dicts():
        position, at = version.parts.position(row["part"]), np.array([row["ordinal"]])
        here = [name for name in version.parts.groups if version.parts.has_group(name)[position]]
        names = [field for group in here for field in groups[group]["field_nbytes"]]
        (address,) = version.address(at, names)
        (fields,) = read_fields(version.shard_store, [address])
        columns = {name: one for name, one in row.items() if one is not None and name not in OF_PLACE[:4]}
        out[row["key"]] = {name: bytes(data) for name, data in fields.items()}, columns
    return out


def field_bytes(version: loader.Version) -> dict[str, dict[str, bytes]]:
    """Key -> field -> bytes."""
    return {key: fields for key, (fields, _) in contents(version).items()}


def sample_contents(version: loader.Version) -> dict[str, tuple[dict[str, bytes], dict[str, Any]]]:
    """The contents without what says where they lie."""
    return {
        key: (fields, {name: one for name, one in columns.items() if name not in OF_PLACE})
        for key, (fields, columns) in contents(version).items()
    }


def sample_columns(version: loader.Version) -> list[dict[str, Any]]:
    """Columns of the samples in the order of their keys, without what says where they lie."""
    apart = [name for name in OF_PLACE if name != "key"]
    return version.samples().collect().drop(apart, strict=False).sort("key").to_dicts()


def digest(version: loader.Version, **how: Any) -> str:
    """The digest of all that a version holds, which is whole."""
    done = content_digest(version, **{"full": True, **how})
    assert done.failures == []
    assert done.samples == len(version)
    return done.digest


def objects(store: Store) -> dict[str, bytes]:
    """Key -> bytes of everything in a store."""
    return {info.key: bytes(store.get(info.key).data) for info in store.list()}


def place_objects(place: Store | Path | str) -> dict[str, bytes]:
    """The same of a place, without the notes of an export."""
    store = open_store(place) if isinstance(place, Path | str) else place
    return {key: data for key, data in objects(store).items() if not key.startswith(".penstock/")}


def importing(
    format: str,
    place: Store | Path | str,
    root: Any = None,
    *,
    key: str | None = None,
    fields: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    without: Iterable[str] = (),
    allow_missing: bool = False,
    dataset: str = "d",
    **how: Any,
) -> tuple[ImportReport, loader.Root]:
    """Import a place; return the report and the root, which is one in memory if none is given."""
    if root is None:
        root = root_in_store(open_store(f"memory://imported-{next(NUMBER)}"))
    root = root if isinstance(root, loader.Root) else loader.Root(root)
    store = open_store(place) if isinstance(place, Path | str) else place
    options = ColumnarOptions(key, dict(fields), frozenset(without), allow_missing=allow_missing)
    return import_place(root, format, store, dataset, options=options, **how), root


def import_version(format: str, place: Store | Path | str, root: Any = None, **how: Any) -> loader.Version:
    """The version of an import without failures."""
    done, root = importing(format, place, root, **how)
    assert done.failures == []
    return root.open(how.get("dataset", "d"))


def failures(format: str, place: Store | Path | str, root: Any = None, **how: Any) -> list[str]:
    """Why an import published nothing."""
    done, root = importing(format, place, root, **how)
    assert (done.id, root.datasets()) == ("", [])
    return done.failures


def outcome(format: str, place: Store | Path | str, root: Any = None, **how: Any) -> str:
    """Why an import published nothing, also if the whole place was refused."""
    try:
        return "; ".join(failures(format, place, root, **how))
    except PenstockError as error:
        return str(error)
