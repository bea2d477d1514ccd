"""The class names of a dataset: what the numbers in `cls` mean, kept by every version that the pipeline publishes."""

from collections.abc import Sequence

from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import manifest_of
from loader.storage import Store


def class_names(store: Store, versions: Sequence[VersionRecord]) -> list[str] | None:
    """Return the names of the newest of these versions that tells any, in the order of their numbers; None for none.

    A version that somebody made by hand, of the one before it, tells none: those of that one hold. Retired versions are
    passed over. Costs a manifest for each version that is asked. Raises: StoreError.
    """
    for record in reversed([record for record in versions if record.retired is None]):
        names = manifest_of(store, record)["producer"].get("labels")
        if names is not None:
            return [str(name) for name in names]
    return None
