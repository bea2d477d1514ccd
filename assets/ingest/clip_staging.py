"""Staging of clips that an audit makes on the way: under the root, deleted once the batch is cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loader.storage import Store
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place
from penstock.stages import check_partition, fingerprint

from ..media.known_facts import ClipStaging
from ..media.policy import CutPolicy
from ..media.segments.read import Segment

_VERSION = "1"
"""Clips of another version are not used."""


def segments_of(raw: Mapping[str, Any]) -> tuple[Segment, ...]:
    """Return the given segments of a raw object."""
    return tuple(Segment(**segment) for segment in raw.get("segments") or ())


StagingOf = Callable[[str, Sequence[Segment]], ClipStaging]
"""(SHA-256 of an object, its given segments) -> staging of its clips."""


def staging_of(store: Store, dataset: str, partition: str, policy: CutPolicy) -> StagingOf:
    """Return the staging of a batch. Its names depend on everything that decides the clips' bytes."""
    plain = {name: str(value) for name, value in policy.of("video").items()}

    def staging(sha256: str, segments: Sequence[Segment]) -> ClipStaging:
        name = fingerprint(_VERSION, sha256, plain, [repr(segment) for segment in segments])[:32]
        return ClipStaging(store=store, key=f"{_folder(dataset, partition)}{name}")

    return staging


def clear_staging(store: Store, dataset: str, partition: str) -> None:
    """Delete a batch's staged clips."""
    listed = list_in_place(store, _folder(dataset, partition))
    delete_in_place(store, [info.key for info, is_link in listed if not is_link])


def _folder(dataset: str, partition: str) -> str:
    return f"tables/{dataset}/clips_ahead/{check_partition(partition)}/"
