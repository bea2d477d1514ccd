"""A dataset's class names, indexed by `cls`.

Every version from the pipeline stores them. A version that was published by hand may lack them: then it has the names
of its newest ancestor with class names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import read_record_manifest
from loader.storage import Store

if TYPE_CHECKING:
    from loader import Version


def class_names(store: Store, versions: Sequence[VersionRecord]) -> list[str] | None:
    """Return the versions' newest class names, by number, or None. Skips retired versions.

    Costs a manifest per version. Raises: StoreError.
    """
    for record in reversed([record for record in versions if record.retired is None]):
        names = read_record_manifest(store, record)["producer"].get("labels")
        if names is not None:
            return [str(name) for name in names]
    return None


_KNOWN: "WeakKeyDictionary[Version, list[str] | None]" = WeakKeyDictionary()


def find_class_names(version: "Version") -> list[str] | None:
    """Return the class names of a version or its newest ancestor with some, or None. Cached.

    Raises: StoreError.
    """
    from loader import Root

    if version not in _KNOWN:
        names = version.manifest["producer"].get("labels")
        # A version out of a pickle has no root, whose log lists the ancestors.
        if names is None and isinstance(version.reader, Root):
            before = [
                record
                for record in version.reader.state.versions(version.dataset)
                if record.number < version.number
            ]
            names = class_names(version.store, before)
        _KNOWN[version] = names if isinstance(names, list) else None
    return _KNOWN[version]
