"""Delete a run's old checkpoints after a commit.

A save at or below the newest committed step is rejected, so an object up to that step that no marker names can never be
committed. Objects of later steps may be in use by a running save.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from loader.errors import CheckpointNotFound, Corrupt, FormatTooNew, InvalidRuntime, StoreError
from loader.keywords import check_whole_number
from loader.storage import ObjectInfo, Store, is_there
from loader.storage.disk.unlisted_files import delete_in_place, is_unfinished, list_in_place

from .marker import Checkpoint, marker_key, part_key, read, steps
from .set_aside import is_record, read_record

_log = logging.getLogger(__name__)
COPYING = "~copying"
"""Empty object beside the parts of a step that is copied to this store; it sorts after them."""
COPYING_US = 2 * 24 * 3600 * 1_000_000
"""Age at which it no longer protects the parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRetention:
    """A rule for deletion. Raises: InvalidRuntime."""

    keep_last: int | None = None
    """Newest checkpoints to keep; None keeps all."""
    keep_every: int | None = None
    """Also keep steps divisible by this."""

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_every"):
            value = getattr(self, name)
            if value is not None:
                check_whole_number(name, value, 1)
        if self.keep_every is not None and self.keep_last is None:
            raise InvalidRuntime(
                "keep_every without keep_last: all checkpoints stay; say keep_last too, or neither",
                what="keep_every",
                given=self.keep_every,
                accepted="keep_last, too",
            )

    def kept(self, committed: Iterable[int]) -> set[int]:
        """Return the steps to keep, always with the newest."""
        ordered = sorted(committed)
        if self.keep_last is None:
            return set(ordered)
        every = self.keep_every
        return {*ordered[-self.keep_last :], *(step for step in ordered if every and step % every == 0)}


def apply(store: Store, retention: CheckpointRetention, newest: Checkpoint) -> None:
    """Delete checkpoints and leftovers that are no longer needed. `newest` was just committed.

    A failed deletion is logged, and retried after the next commit. A marker is deleted before its parts. Listings may
    lag: decisive markers are requested directly, and nothing is deleted if a listing lacks the newest step.

    Costs two listings, one read of the previous marker, and one request per 1,000 deleted objects. Deleting a marker
    costs `keep_last` more requests; deleting a step's parts, one.
    """
    try:
        committed = steps(store, newest.run)
        if newest.step not in committed:
            _log.warning(
                "old checkpoints of run %s in %s were not deleted: step %d was just committed, and is not listed",
                newest.run,
                store.url,
                newest.step,
            )
            return
        kept = retention.kept(committed)
        if len(kept) < len(committed):
            # A deleted step that is still listed must not count towards `keep_last`.
            kept = retention.kept(_without_deleted(store, newest.run, committed, retention.keep_last or 0))
        # Markers first: a step without parts must not look like a checkpoint.
        store.delete_many(marker_key(newest.run, step) for step in committed if step not in kept)
        delete_in_place(store, _leftovers(store, newest, kept), _parts(newest.run))
    except StoreError as error:
        _log.warning("old checkpoints of run %s in %s were not deleted: %s", newest.run, store.url, error)


def remains(store: Store, run: str) -> Iterator[tuple[int, ObjectInfo]]:
    """Yield (step, object) of a run's parts, by step."""
    return _by_step(run, store.list(_parts(run)))


def _by_step(run: str, objects: Iterable[ObjectInfo]) -> Iterator[tuple[int, ObjectInfo]]:
    for info in objects:
        step = info.key.removeprefix(_parts(run)).partition("/")[0]
        if len(step) == 12 and step.isdecimal():
            yield int(step), info


def _parts(run: str) -> str:
    return part_key(run, 0, "").rpartition("/")[0].rpartition("/")[0] + "/"


def _without_deleted(store: Store, run: str, committed: list[int], last: int) -> list[int]:
    """Drop deleted steps that a listing still shows, as far as the `last` newest need it."""
    there: list[int] = []
    for at in range(len(committed), 0, -1):
        if len(there) == last:
            return [*committed[:at], *reversed(there)]
        if is_there(store, marker_key(run, committed[at - 1])):
            there.append(committed[at - 1])
    return there[::-1]


def _leftovers(store: Store, newest: Checkpoint, kept: set[int]) -> Iterator[str]:
    """Yield keys up to the newest committed step that belong to no checkpoint."""
    # The newest two markers are read: older attempts beside others were deleted by earlier commits.
    before = max((step for step in kept if step < newest.step), default=None)
    named = {item.step: item for item in (newest, _marker(store, newest.run, before)) if item is not None}
    own = {item.key(part) for item in named.values() for part in item.objects}
    here = list_in_place(store, _parts(newest.run), _parts(newest.run))
    objects_here = (info for info, link in here if not link and not is_unfinished(info.key))
    for step, objects in groupby(_by_step(newest.run, objects_here), lambda item: item[0]):
        # A later save may be writing these; groupby's steps ascend.
        if step > newest.step:
            return
        infos = [item for _, item in objects]
        if step in named:
            aside = _set_aside(store, infos)
            yield from (item.key for item in infos if item.key not in own and item.key not in aside)
        elif step not in kept and _has_no_marker(store, newest.run, step):
            aside = _set_aside(store, infos)
            if not any(_is_claim(item) for item in infos):
                yield from (item.key for item in infos if item.key not in aside)


def _set_aside(store: Store, infos: Iterable[ObjectInfo]) -> set[str]:
    """Return the keys among a step's objects that belong to a checkpoint that was set aside, with its record."""
    keys = [info.key for info in infos]
    results = set[str]()
    for key in keys:
        if not is_record(key):
            continue
        folder = key.rpartition("/")[0]
        try:
            results |= {key, *(f"{folder}/{name}" for name in read_record(store, key).names)}
        except Corrupt as error:
            _log.warning("all objects beside %s stay: %s", key, error)
            return set(keys)
    return results


def _is_claim(info: ObjectInfo) -> bool:
    """Return whether this step's copy is on its way, or was cut off a short time ago."""
    now_us = time.time_ns() // 1000
    # A store without times protects the parts: what is not deleted costs less than a lost copy.
    return info.key.endswith(f"/{COPYING}") and (info.modified_us or now_us) > now_us - COPYING_US


def _has_no_marker(store: Store, run: str, step: int) -> bool:
    """Return whether a step still has no marker, right before its parts are deleted as leftovers."""
    if not is_there(store, marker_key(run, step)):
        return True
    _log.warning(
        "step %d of run %s in %s has a marker that was not listed: its parts stay", step, run, store.url
    )
    return False


def _marker(store: Store, run: str, step: int | None) -> Checkpoint | None:
    """Return a step's checkpoint; None without one, or if its marker cannot be read."""
    try:
        if step is None:
            return None
        return read(store, run, step)
    except (CheckpointNotFound, Corrupt, FormatTooNew) as error:
        _log.warning("leftovers of other attempts beside step %d of run %s stay: %s", step, run, error)
        return None
