"""Raw objects that a takedown names: they land no more."""

from collections.abc import Sequence

from loader.dataset.denied import DenyList
from loader.dataset.history import Deny

from .manifests import RawObject


class DeniedObjects:
    """The takedowns that a dataset's arrivals are held against: an object's key and URI, and its folder where each
    folder is a subject (`DatasetSpec.split_by`). Costs a few hashes per object and takedown's salt."""

    def __init__(self, denies: Sequence[Deny], dataset: str, *, by_subject: bool = False) -> None:
        self._denied, self._by_subject = DenyList(denies, dataset), by_subject

    def has(self, item: RawObject) -> bool:
        """Whether a takedown names the object."""
        if self._by_subject and self._denied.entry_of("subject", item.folder):
            return True
        return any(self._denied.entry_of("raw", name) for name in (item.key, item.uri))
