"""Exclude samples by a person's decision, or end exclusions. A record is written before any version changes."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from loader.dataset.log.marker import check_primary
from loader.dataset.publishing.publish import publish_without
from loader.dataset.slices import slice_keys
from loader.dataset.versions.samples_table import live_ordinals
from loader.dataset.versions.slice_members import missing_keys
from loader.errors import (
    Conflict,
    EmptyVersion,
    InvalidKey,
    InvalidRuntime,
    SampleNotFound,
    VersionNotFound,
)
from loader.json_text import is_text

from ..exclusion_records import (
    ExcludedSample,
    Exclusion,
    Withdrawal,
    records,
    standing,
    standing_exclusions,
    write_record,
)
from .stopped_samples import find_stopped

if TYPE_CHECKING:
    from loader import Root, Version

# A try fails only if another process published or retired a version meanwhile.
_TRIES = 8
_SHOWN = 5
"""Most keys named in a message."""


def exclude(
    root: "Root",
    ref: str,
    keys: Collection[str],
    *,
    reason: str,
    by: str,
    page: str = "",
    whole_objects: bool = False,
) -> tuple[Exclusion, "Version"]:
    """Publish a dataset's next version without these samples, and exclude them from all later builds.

    Returns the record, and the newest version, which lacks the samples. If the same person repeats it for the
    same reason, nothing is published.

    ref: version in which the person saw the samples; need not be the newest.
    keys: keys of live samples in that version, or of samples in batches that the gate stopped.
    page: URL of the decision's page, or "".
    whole_objects: exclude every sample ever cut from the same raw objects.

    Raises: SampleNotFound for an unknown key, before anything is written; EmptyVersion if the newest version would be
    empty; InvalidKey; InvalidRuntime if there is no reason or name, or the raw objects are unknown; VersionRetired;
    Conflict in a mirror; MissingDependency if polars is not installed.
    """
    checked_keys = _check(keys, reason, by, page)
    version = root.open(ref)
    _check_writable(root)
    known = records(root.store, version.dataset)
    stands = standing(known)
    words = (reason, by, page)
    own_records = [
        one for one in known if isinstance(one, Exclusion) and (one.reason, one.by, one.page) == words
    ]
    # Published again: a process may have stopped between the record and its version.
    if same := [one for one in own_records if _matches(one, checked_keys, whole_objects, stands)]:
        return same[0], _publish(root, same[0], same[0].keys)
    samples = _samples(version, checked_keys, whole_objects)
    absent = [key for key in checked_keys if key not in samples]
    if absent:
        samples |= find_stopped(
            root,
            version.dataset,
            absent,
            whole_objects=whole_objects,
        )
    if missing := [key for key in checked_keys if key not in samples]:
        raise _not_live(version.name, missing, stands)
    record = Exclusion(
        dataset=version.dataset,
        samples=tuple(samples[key] for key in sorted(samples)),
        reason=reason,
        by=by,
        page=page,
        version=version.name,
        version_id=version.id,
    )
    # Before the record is written: no later build could publish anything.
    _check_some_stay(_newest(root, version.dataset), record.keys)
    write_record(root.store, record)
    return record, _publish(root, record, record.keys)


def exclude_slice(
    root: "Root",
    ref: str,
    name: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    whole_objects: bool = False,
) -> tuple[Exclusion, "Version", tuple[str, ...]]:
    """Exclude a slice's samples in a version, as `exclude`. Also returns the keys of a list that the version lacks.

    The exclusion's page is the path of the slice's record, and its reason names the slice. reason, by: None takes the
    slice's own. If the version has none of the samples, a former exclusion by the same words counts.

    Raises: SampleNotFound if the version has none of the samples; SliceNotFound; Corrupt; as `exclude`.
    """
    version = root.open(ref)
    slice_record, keys = slice_keys(version, name)
    why = slice_record.why if reason is None else reason
    author = slice_record.by if by is None else by
    if not is_text(why) or not why.strip():
        raise InvalidRuntime(f"an exclusion needs a reason, got {why!r}: pass text that others will read")
    full_reason = f"slice {slice_record.full_name}: {why}"
    missing = tuple(missing_keys(version, slice_record))
    page = slice_record.path
    # A repetition after success: its version is published again, if that was lost.
    if not keys:
        words = (full_reason, author, page)
        for former in records(root.store, version.dataset):
            if isinstance(former, Exclusion) and (former.reason, former.by, former.page) == words:
                others = tuple(key for key in missing if key not in former.keys)
                return former, _publish(root, former, former.keys), others
        raise SampleNotFound(
            f"{version.name} has no sample of the slice {slice_record.full_name}: nothing was excluded. Gone are "
            f"{_key_text(missing) or 'none'}"
        )
    record, newest = exclude(
        root,
        ref,
        keys,
        reason=full_reason,
        by=author,
        page=page,
        whole_objects=whole_objects,
    )
    return record, newest, missing


def obey(root: "Root", dataset: str) -> "Version | None":
    """Publish the newest version without its excluded samples; return None if nothing is published.

    Needed if a process stopped after its record, or the version without them was retired. A version
    with only excluded samples stays. Reads the version's key column if any exclusion stands.
    """
    for attempt in range(_TRIES):
        stands = standing_exclusions(root.store, dataset)
        newest = root.state.newest(dataset)
        if not stands or newest is None:
            return None
        try:
            version = publish_without(root, root.open(newest.id), exclusions=stands)
        except (Conflict, VersionNotFound):  # another process excluded a sample, or retired the version
            if attempt == _TRIES - 1:
                raise
        else:
            if version.id == newest.id:
                return None
            return version
    raise AssertionError("unreachable")


def withdraw(
    root: "Root", ref: str, keys: Collection[str], *, reason: str, by: str, page: str = ""
) -> Withdrawal:
    """End the exclusions of these keys: later builds include the samples.

    ref: any version of the dataset, even a retired one. Raises: SampleNotFound for a key without a standing exclusion,
    before anything is written; otherwise as `exclude`.
    """
    checked_keys = _check(keys, reason, by, page)
    # An exclusion outlives the version in which a person saw its samples.
    dataset = root.record(ref, retired=True).dataset
    _check_writable(root)
    stands = standing(records(root.store, dataset))
    if missing := [key for key in checked_keys if key not in stands]:
        raise SampleNotFound(
            f"{_key_text(missing)} of {dataset}: no exclusion stands, so nothing was withdrawn. Name keys "
            "with a standing exclusion",
            what="keys",
            where=dataset,
            given=missing,
            accepted="keys with a standing exclusion",
        )
    record = Withdrawal(
        dataset=dataset,
        keys=tuple(checked_keys),
        withdraws=tuple(sorted({one.path for key in checked_keys for one in stands[key]})),
        reason=reason,
        by=by,
        page=page,
    )
    write_record(root.store, record)
    return record


def _check(keys: Collection[str], reason: str, by: str, page: str) -> list[str]:
    # A str is a collection too: each of its letters would be a key.
    if isinstance(keys, str):
        message = f"a list of keys is needed, got the str {keys!r}; pass [{keys!r}]"
        raise InvalidKey(message, what="keys", given=keys, accepted="a list of keys")
    if strange := [key for key in keys if not is_text(key)]:
        raise InvalidKey(
            f"a key is UTF-8 text, got {strange[0]!r}", what="key", given=strange[0], accepted="UTF-8 text"
        )
    if not keys:
        raise InvalidRuntime(
            "no key is given; name at least one", what="keys", given=[], accepted="at least one"
        )
    for name, words in (("reason", reason), ("name", by)):
        if not is_text(words) or not words.strip():
            raise InvalidRuntime(
                f"an exclusion needs a {name}, got {words!r}: pass text that others will read"
            )
    if not is_text(page):
        raise InvalidRuntime(f"page={page!r} is not text; pass an address, or nothing")
    return sorted(set(keys))


def _check_writable(root: "Root") -> None:
    root.create()
    check_primary(root.store, root.state)


def _matches(
    record: Exclusion, keys: Sequence[str], whole_objects: bool, stands: Mapping[str, Sequence[Exclusion]]
) -> bool:
    """Return whether a record already excludes just these keys. stands: key -> records that are in force."""
    # Withdrawn in part: to exclude them again is a new decision.
    if not all(record in stands.get(key, ()) for key in record.keys):
        return False
    if not whole_objects:
        return list(record.keys) == list(keys)
    return set(keys) <= set(record.keys) and all(one.whole_object for one in record.samples)


def _samples(version: "Version", keys: Sequence[str], whole_objects: bool) -> dict[str, ExcludedSample]:
    import polars as pl

    # A version that was not cut by a pipeline may lack the columns about raw objects.
    known = version.manifest["columns"]
    facts = [name for name in ("unit_id", "raw_uri", "raw_sha256", "raw_end") if name in known]
    table = version.samples().select("key", *facts)
    chosen = table.filter(pl.col("key").is_in(list(keys))).collect()
    if whole_objects:
        objects = set(chosen["raw_sha256"]) if "raw_sha256" in known else {None}
        # Without a hash, the other samples of a raw object cannot be found.
        if not all(objects):
            raise InvalidRuntime(
                f"{version.name} does not name the raw object of each of these samples; exclude them only by key"
            )
        chosen = table.filter(pl.col("raw_sha256").is_in(sorted(objects))).collect()
    samples = {}
    for row in chosen.iter_rows(named=True):
        sha256 = row.get("raw_sha256") or ""
        end = row.pop("raw_end", None)
        # A sample without an end is its whole raw object.
        whole = whole_objects or bool(sha256 and not end)
        texts = {name: value or "" for name, value in row.items()}
        samples[row["key"]] = ExcludedSample(**texts, whole_object=whole)
    return samples


def _not_live(version: str, keys: Sequence[str], stands: Mapping[str, Sequence[Exclusion]]) -> SampleNotFound:
    message = f"{version} has no live sample {_key_text(keys)}; nothing was excluded"
    excluded = [(key, stands[key][-1]) for key in keys if key in stands]
    if excluded:
        key, record = excluded[0]
        message += f". {key!r} was excluded already, by {record.by}: {record.reason}"
    message += ". List keys with version.samples()"
    return SampleNotFound(
        message, what="keys", where=version, given=list(keys), accepted="keys of live samples"
    )


def _key_text(keys: Sequence[str]) -> str:
    more = ""
    if len(keys) > _SHOWN:
        more = f" and {len(keys) - _SHOWN} more"
    return ", ".join(map(repr, keys[:_SHOWN])) + more


def _newest(root: "Root", dataset: str) -> "Version":
    newest = root.state.newest(dataset)
    if newest is None:
        raise Conflict(f"every version of {dataset} was retired meanwhile; later builds obey the exclusion")
    return root.open(newest.id)


def _check_some_stay(newest: "Version", keys: Sequence[str]) -> None:
    if len(_live(newest, keys)) == len(newest):
        raise EmptyVersion(
            f"these {len(keys)} keys are all samples of {newest.name}; nothing was excluded: keep at least one",
            what="keys",
            where=newest.name,
            given=len(keys),
            accepted="not all samples",
        )


def _live(version: "Version", keys: Sequence[str]) -> list[str]:
    return [key for key, at in zip(keys, live_ordinals(version, keys), strict=True) if at >= 0]


def _publish(root: "Root", record: Exclusion, keys: Sequence[str]) -> "Version":
    producer = {"exclusion": record.path, "by": record.by, "reason": record.reason, "page": record.page}
    for attempt in range(_TRIES):
        newest = _newest(root, record.dataset)
        live = _live(newest, keys)
        if not live:
            return newest
        try:
            return root.exclude(newest.id, live, reason=record.reason, producer=producer)
        except (
            Conflict,
            SampleNotFound,
            VersionNotFound,
        ):  # another process excluded a sample, or retired the version
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")
