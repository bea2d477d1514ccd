"""Earlier versions of a dataset, whose stored tables a later version's go on from."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ...errors import PenstockError

if TYPE_CHECKING:
    from ..log.state import VersionRecord
    from .version import Version

logger = logging.getLogger(__name__)
EARLIER_MAX = 16
"""Most earlier versions to look at; each costs opening it and two requests."""


@runtime_checkable
class Versions(Protocol):
    """A root."""

    def versions(self, dataset: str) -> "list[VersionRecord]":
        """Return the versions of a dataset."""

    def open(self, ref: str) -> "Version":
        """Return a version."""


def earlier_versions(version: "Version", prefix: str) -> "Iterator[Version]":
    """Yield earlier versions, the newest first, if the root has objects under a prefix.

    A version out of a pickle has no root to look in.
    """
    root = version.reader
    if not isinstance(root, Versions) or next(iter(version.store.list(prefix)), None) is None:
        return
    records = [
        one for one in root.versions(version.dataset) if one.number < version.number and not one.retired
    ]
    for record in records[: -EARLIER_MAX - 1 : -1]:
        try:
            earlier = root.open(record.id)
        except PenstockError as error:
            logger.debug("tables of %s are not used: %s", record.name, error)
            continue
        yield earlier
