"""A dataset built anew beside another one: the same raw objects in the same splits, cut in another way.

    BESIDE = rebuild_of(SPEC, "demo_720", policy=CutPolicy(video=VideoPolicy(short_side_px=720)))

It takes over the batches of the dataset that it is built of, once. Its own discovery finds what arrives later. The
versions of the other one, and trainings that read them, are not touched.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loader.dataset.log.state import Deny
from loader.errors import AlreadyExists
from loader.storage import Store

from ..spec import DatasetSpec
from .batch_manifests import Book, DeniedObjects, Identity, manifests


def rebuild_of(spec: DatasetSpec, name: str, **changes: Any) -> DatasetSpec:
    """Return the spec of the dataset `name`, built of the same batches as `spec`. Raises: as `DatasetSpec`."""
    return replace(spec, name=name, rebuild_of=spec.rebuild_of or spec.name, **changes)


def take_over(
    store: Store, of: str, name: str, denies: Sequence[Deny] = (), *, by_subject: bool = False
) -> list[str]:
    """Give dataset `name` the batches that dataset `of` has, number by number, without a listing of the sources.

    Returns the keys of those that are new to it, oldest first. Objects that it has already, or that a takedown names,
    are left out. Killed anywhere it can be run again. Costs a GET per manifest of both, and a PUT per batch; memory as
    `discover`.

    Raises: InvalidName; Corrupt.
    """
    book, denied, made = Book(store, name), DeniedObjects(denies, of, by_subject=by_subject), list[str]()
    seen: set[Identity] = {(row["uri"], row["etag"]) for row in book.seen().to_pylist()}
    for manifest in manifests(store, of):
        left = [item for item in manifest.objects if item.identity not in seen and not denied.has(item)]
        while left:
            try:
                made.append(book.append(manifest.landing, left).batch)
            except AlreadyExists:  # somebody takes over too, or discovers
                seen |= book.read_on()
                left = [item for item in left if item.identity not in seen]
            else:
                seen.update(item.identity for item in left)
                break
    if made:
        book.leave_hint()
    return made
