"""Staging of clips that the audit of a batch made on the way: under the root, gone when the batch is cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loader.storage import Store
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place
from penstock.stages import check_partition, fingerprint

from ..media.cutters import ClipStaging
from ..media.policy import CutPolicy
from ..media.segments import Segment

_VERSION = "1"
"""Version of how clips are made: under another one, waiting clips are not taken."""


def segments_of(raw: Mapping[str, Any]) -> tuple[Segment, ...]:
    """Return the given segments of a landed object."""
    return tuple(Segment(**segment) for segment in raw.get("segments") or ())


StagingOf = Callable[[str, Sequence[Segment]], ClipStaging]
"""(SHA-256 of an object, its given segments) -> the place for its clips."""


def staging_of(store: Store, dataset: str, partition: str, policy: CutPolicy) -> StagingOf:
    """Return the places of a batch. The name of each depends on everything that decides the bytes of the clips."""
    plain = {name: str(value) for name, value in policy.of("video").items()}

    def staging(sha256: str, segments: Sequence[Segment]) -> ClipStaging:
        name = fingerprint(_VERSION, sha256, plain, [repr(segment) for segment in segments])[:32]
        return ClipStaging(store=store, key=f"{_folder(dataset, partition)}{name}")

    return staging


def clear_staging(store: Store, dataset: str, partition: str) -> None:
    """Delete the clips that wait for a batch, cut or not. Raises: StoreError."""
    there = list_in_place(store, _folder(dataset, partition))
    delete_in_place(store, [info.key for info, is_link in there if not is_link])


def _folder(dataset: str, partition: str) -> str:
    return f"tables/{dataset}/clips_ahead/{check_partition(partition)}/"
