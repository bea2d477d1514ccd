"""Set a checkpoint aside: its marker goes, its bytes stay, and the run goes on at the one before.

A record beside the parts keeps the marker, and names the objects that no later save deletes:

    checkpoints/<run>/parts/<step>/~aside-<16 hex>.json      of marker and names
"""

import base64
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loader.dataset.log.entries import DAMAGED, canonical
from loader.errors import (
    AlreadyExists,
    CheckpointNotFound,
    Corrupt,
    CorruptCheckpoint,
    ObjectNotFound,
)
from loader.json_text import parse_json_object
from loader.storage import Store
from loader.storage.mirror import primary_store

from .marker import marker_key, object_problem, part_key, read, sha256, steps

FORMAT = 1
_ASIDE = re.compile(r"~aside-[0-9a-f]{16}\.json")
MOST_REASON = 2000
"""Most characters of a reason."""
MOST_BYTES = 64 * 2**20
"""A larger record is not read: it names the objects of a step, some hundred bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A checkpoint that was set aside."""

    run: str
    """Run name."""
    step: int
    """Completed steps."""
    at_us: int
    """UTC microseconds since 1970."""
    by: str
    """Person or launcher."""
    reason: str
    """Why, in words."""
    is_automatic: bool
    """True if a start of the run did it."""
    names: frozenset[str]
    """Its objects under `parts/<step>/`."""
    nbytes: int
    """Bytes of the objects."""


def is_record(key: str) -> bool:
    """Return whether a key under `parts/<step>/` is the record of a checkpoint that was set aside."""
    return _ASIDE.fullmatch(key.rpartition("/")[2]) is not None


def set_aside(
    store: Store, run: str, step: int, *, by: str, reason: str, automatic: bool = False
) -> SetAside:
    """Set a checkpoint aside, damaged or not. A call after a killed one completes it.

    automatic: True for a start of the run, which does it once per step.

    Costs a listing of the step's objects and four requests.

    Raises: CheckpointNotFound without the step's marker; Corrupt if a start set another one of the step aside;
    StoreError.
    """
    store = primary_store(store)
    key = marker_key(run, step)
    try:
        data = store.get(key).data
    except ObjectNotFound as error:
        raise CheckpointNotFound(
            f"{store.url}: run {run!r} has no checkpoint of step {step} to set aside: penstock checkpoints ls {run}",
            what="step",
            where=f"{store.url}: run {run!r}",
            given=step,
        ) from error
    sizes = {info.key.rpartition("/")[2]: info.nbytes for info in store.list(part_key(run, step, ""))}
    names = [name for name in sorted(sizes) if not name.startswith("~")]
    # The names too: two emptied markers are alike.
    digest = sha256(b"\n".join([data, *map(str.encode, names)]))
    own = f"~aside-{digest[:16]}.json"
    earlier = [
        read_record(store, part_key(run, step, name)) for name in sizes if is_record(name) and name != own
    ]
    if automatic and any(record.is_automatic for record in earlier):
        raise Corrupt(
            f"{store.url}: a checkpoint of step {step} of run {run!r} was set aside before, and the one saved since is "
            f"damaged, too. Find what damages them; then penstock checkpoints set-aside {run}@{step}",
            what="step",
            where=f"{store.url}: run {run!r}",
            given=step,
            accepted="a checkpoint that was not set aside",
        )
    # Each object belongs to one record, so that sizes in a listing add up.
    others = set[str]().union(*(record.names for record in earlier))
    body = {
        "format": FORMAT,
        "run": run,
        "step": step,
        "at_us": time.time_ns() // 1000,
        "by": by,
        "reason": reason[:MOST_REASON],
        "automatic": automatic,
        "marker": base64.b64encode(data).decode(),
        "objects": [{"name": name, "nbytes": sizes[name]} for name in names if name not in others],
    }
    with suppress(AlreadyExists):  # of a call that was killed before it deleted the marker
        store.put_if_absent(part_key(run, step, own), canonical(body))
    # After the record: a kill between the two leaves the marker, and the next call completes it.
    store.delete_many([key])
    return read_record(store, part_key(run, step, own))


def set_damaged_aside(store: Store, damage: CorruptCheckpoint, by: str) -> SetAside:
    """Set a checkpoint aside that this process finds damaged as well, if an earlier one exists.

    Raises: CorruptCheckpoint if there is no earlier one; Corrupt if it is intact here, or if a start set a checkpoint
    of this step aside before; StoreError, which proves no damage.
    """
    store = primary_store(store)
    run = damage.run
    step = damage.step
    problem = _problem(store, damage)
    if not problem:
        raise Corrupt(
            f"{damage}. This node reads the same object as it was written: the other node's reads are wrong, and "
            "nothing was set aside",
            what="checkpoint",
            where=f"{run}@{step}",
            given="intact",
            accepted="damaged",
        ) from damage
    # Without an earlier checkpoint the run would silently begin at step 0.
    if not any(earlier < step for earlier in steps(store, run)):
        damage.add_note(
            f"no checkpoint of {run} is older: nothing was set aside. If its bytes cannot be restored, penstock "
            f"checkpoints set-aside {run}@{step} lets the run begin at step 0"
        )
        raise damage
    return set_aside(store, run, step, by=by, reason=problem, automatic=True)


def _problem(store: Store, damage: CorruptCheckpoint) -> str:
    """Return what is wrong with the damaged object, by a read of the whole object.

    "" if it is intact, or if the marker names no such object.
    """
    try:
        checkpoint = read(store, damage.run, damage.step)
    except CorruptCheckpoint as error:
        return error.problem
    for stored in checkpoint.objects:
        if stored.name == damage.name:
            key = checkpoint.key(stored)
            problem = object_problem(store, key, stored)
            if problem:
                return f"{store.url}/{key}: {problem}"
            return ""
    return ""


def read_record(store: Store, key: str) -> SetAside:
    """Return what a record holds. Raises: Corrupt; StoreError."""
    info = store.head(key)
    if info.nbytes > MOST_BYTES:
        raise Corrupt(f"{store.url}/{key} has {info.nbytes:,} bytes; a record of a checkpoint has fewer")
    data = store.get(key).data
    try:
        return _parse(parse_json_object(data))
    except DAMAGED as error:
        raise Corrupt(
            f"{store.url}/{key} is not a record of a checkpoint that was set aside: {error}"
        ) from error


def _parse(body: dict[str, Any]) -> SetAside:
    """Return the record in a JSON object. Raises: one of `DAMAGED` if it is no such record."""
    sizes = {str(one["name"]): int(one["nbytes"]) for one in body["objects"]}
    return SetAside(
        run=str(body["run"]),
        step=int(body["step"]),
        at_us=int(body["at_us"]),
        by=str(body["by"]),
        reason=str(body["reason"]),
        is_automatic=body["automatic"] is True,
        names=frozenset(sizes),
        nbytes=sum(sizes.values()),
    )
