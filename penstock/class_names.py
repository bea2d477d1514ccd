"""The class names of a dataset: what the numbers in `cls` mean, kept by every version that the pipeline publishes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import manifest_of
from loader.storage import Store

if TYPE_CHECKING:
    from loader import Version


def class_names(store: Store, versions: Sequence[VersionRecord]) -> list[str] | None:
    """Return the names of the newest of these versions that has any, in the order of their numbers; None for none.

    A version that was made by hand has none: its predecessor's names hold. Retired versions are skipped. Costs one
    manifest per version. Raises: StoreError.
    """
    for record in reversed([record for record in versions if record.retired is None]):
        names = manifest_of(store, record)["producer"].get("labels")
        if names is not None:
            return [str(name) for name in names]
    return None


_KNOWN: "WeakKeyDictionary[Version, list[str] | None]" = WeakKeyDictionary()


def class_names_of(version: "Version") -> list[str] | None:
    """Return the names that hold for a version: its own, else the newest earlier version's; None for none.

    They are looked up once for each opened version. Raises: as `class_names`.
    """
    from loader import Root

    if version not in _KNOWN:
        names = version.manifest["producer"].get("labels")
        if names is None and isinstance(version.reader, Root):
            before = [
                record
                for record in version.reader.state.versions(version.dataset)
                if record.number < version.number
            ]
            names = class_names(version.store, before)
        _KNOWN[version] = names if isinstance(names, list) else None
    return _KNOWN[version]
