"""Exclusion of samples by a person: the record first, then the version without them; and its withdrawal.

A process killed in between leaves a record that the next build obeys. The same action again goes on with that record.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from loader.dataset.log.marker import check_primary
from loader.dataset.versions.samples_table import live_ordinals
from loader.errors import Conflict, EmptyVersion, InvalidKey, InvalidRuntime, VersionNotFound
from loader.json_text import is_text

from .exclusion import ExcludedSample, Exclusion, Withdrawal, records, standing, write_record

if TYPE_CHECKING:
    from loader import Root, Version

_TRIES = 8
_SHOWN = 5
"""Keys that a message names."""


def exclude(
    root: "Root", ref: str, keys: Collection[str], *, reason: str, by: str, page: str = ""
) -> tuple[Exclusion, "Version"]:
    """Leave samples out of a dataset: of its next version, and of all that later builds make of these samples.

    Returns the record, and the newest version, which is without the samples. The same action again, by the same person
    for the same reason, goes on where it stopped and publishes nothing twice. What others publish meanwhile is kept.

    Args:
        root: Root of the dataset.
        ref: Version in which the samples were seen. A later one may be the newest.
        keys: Keys of live samples of that version.
        reason: Reason in words.
        by: Name of the person.
        page: Address of the page where it was decided; "" for none.

    Raises: VersionNotFound for a key that the version does not have, and nothing is written; EmptyVersion for all
    samples of the newest one; InvalidKey; InvalidRuntime without a reason or a name; VersionRetired; Conflict in a
    mirror; MissingDependency without polars.
    """
    wanted = _checked(keys, reason, by, page)
    version = root.open(ref)
    _check_writable(root)
    known = records(root.store, version.dataset)
    stands = standing(known)
    same = [
        one
        for one in known
        if isinstance(one, Exclusion)
        and (list(one.keys), one.reason, one.by, one.page) == (wanted, reason, by, page)
        and all(one in stands.get(key, ()) for key in one.keys)
    ]
    if same:
        return same[0], _publish(root, same[0])
    samples = _samples(version, wanted)
    if missing := [key for key in wanted if key not in samples]:
        raise VersionNotFound(_missing(version.name, missing, stands))
    record = Exclusion(
        dataset=version.dataset,
        samples=tuple(samples[key] for key in wanted),
        reason=reason,
        by=by,
        page=page,
        version=version.name,
        version_id=version.id,
    )
    newest = _newest(root, version.dataset)
    if len(_live(newest, wanted)) == len(newest):
        raise EmptyVersion(
            f"these {len(wanted)} keys are all samples of {newest.name}; nothing was excluded: keep at least one"
        )
    write_record(root.store, record)
    return record, _publish(root, record)


def withdraw(
    root: "Root", ref: str, keys: Collection[str], *, reason: str, by: str, page: str = ""
) -> Withdrawal:
    """End the exclusions of these keys. Versions do not change: later builds take the samples again.

    ref: any version of the dataset, a retired one too.

    Raises: VersionNotFound for a key of which no exclusion stands, and nothing is written; else as `exclude`.
    """
    wanted = _checked(keys, reason, by, page)
    dataset = root.record(ref, retired=True).dataset
    _check_writable(root)
    stands = standing(records(root.store, dataset))
    if missing := [key for key in wanted if key not in stands]:
        raise VersionNotFound(
            f"{_named(missing)} of {dataset}: no exclusion stands, so nothing was withdrawn. Name keys that somebody "
            "excluded and nobody took back"
        )
    record = Withdrawal(
        dataset=dataset,
        keys=tuple(wanted),
        withdraws=tuple(sorted({one.path for key in wanted for one in stands[key]})),
        reason=reason,
        by=by,
        page=page,
    )
    write_record(root.store, record)
    return record


def _checked(keys: Collection[str], reason: str, by: str, page: str) -> list[str]:
    """Return the keys, sorted, each once. Raises: InvalidKey; InvalidRuntime."""
    if isinstance(keys, str):
        raise InvalidKey(f"a list of keys is needed, got the str {keys!r}; pass [{keys!r}]")
    if strange := [key for key in keys if not is_text(key)]:
        raise InvalidKey(f"a key is UTF-8 text, got {strange[0]!r}")
    if not keys:
        raise InvalidRuntime("no key is given; name at least one")
    for name, words in (("reason", reason), ("name", by)):
        if not is_text(words) or not words.strip():
            raise InvalidRuntime(
                f"an exclusion needs a {name}, got {words!r}: pass text that others will read"
            )
    if not is_text(page):
        raise InvalidRuntime(f"page={page!r} is no text; pass an address, or nothing")
    return sorted(set(keys))


def _check_writable(root: "Root") -> None:
    """Raise Conflict where the root's history goes on elsewhere: the record would be of no use here."""
    root.create()
    check_primary(root.store, root.state)


def _samples(version: "Version", keys: Sequence[str]) -> dict[str, ExcludedSample]:
    """Return key -> sample, of those that are live in the version."""
    import polars as pl

    columns = [name for name in ExcludedSample.__slots__ if name in version.manifest["columns"]]
    wanted = ["key", *(name for name in columns if name != "key")]
    rows = version.samples().filter(pl.col("key").is_in(list(keys))).select(wanted).collect()
    return {
        row["key"]: ExcludedSample(**{name: value or "" for name, value in row.items()})
        for row in rows.iter_rows(named=True)
    }


def _missing(version: str, keys: Sequence[str], stands: Mapping[str, Sequence[Exclusion]]) -> str:
    """Return the message about keys that are not live in a version."""
    told = f"{version} has no live sample {_named(keys)}; nothing was excluded"
    gone = [(key, stands[key][-1]) for key in keys if key in stands]
    if gone:
        key, one = gone[0]
        told += f". {key!r} was excluded already, by {one.by}: {one.reason}"
    return f"{told}. List keys with version.samples()"


def _named(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(map(repr, keys[:_SHOWN])) + more


def _newest(root: "Root", dataset: str) -> "Version":
    """Return the newest version. Raises: Conflict where all were retired."""
    newest = root.state.newest(dataset)
    if newest is None:
        raise Conflict(f"every version of {dataset} was retired meanwhile; later builds obey the exclusion")
    return root.open(newest.id)


def _live(version: "Version", keys: Sequence[str]) -> list[str]:
    return [key for key, at in zip(keys, live_ordinals(version, keys), strict=True) if at >= 0]


def _publish(root: "Root", record: Exclusion) -> "Version":
    """Return the newest version, published without the samples if it has one. Raises: Conflict after `_TRIES`."""
    producer = {"exclusion": record.path, "by": record.by, "reason": record.reason, "page": record.page}
    for attempt in range(_TRIES):
        newest = _newest(root, record.dataset)
        live = _live(newest, record.keys)
        if not live:
            return newest
        try:
            return root.exclude(newest.id, live, reason=record.reason, producer=producer)
        except (Conflict, VersionNotFound):  # somebody excluded one of them, or retired this version
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")
