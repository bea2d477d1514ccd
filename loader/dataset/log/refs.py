"""Parse references to one version, as a person types them.

- photos: photos@latest
- photos@latest: the newest version that is not retired
- photos@3: version 3
- photos@prod: a tag or an alias
- v-<8 to 64 hex>: a unique prefix of the version's id
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import InvalidName, VersionNotFound, VersionRetired
from ...keywords import did_you_mean
from ...storage import Store
from ...storage.mirror import MirroredStore
from ..names import LATEST, check_dataset_name, check_ref_name
from .marker import Marker
from .state import State, VersionRecord


@contextmanager
def mirrors_named(store: Store, marker: Marker, state: State) -> Iterator[None]:
    """Add a note to a VersionNotFound from a mirror: its last log entry, and how to update it. No request."""
    try:
        yield
    except VersionNotFound as error:
        if not (lag := _lag(store, marker, state)):
            raise
        raise VersionNotFound(f"{error}; {lag}", dataset=error.dataset) from None


def _lag(store: Store, marker: Marker, state: State) -> str:
    if isinstance(store, MirroredStore):
        # (the marker may come from a mirror that is read because it is near)
        if store.primary_is_up:
            return ""
        mirrors = ", ".join(one.url for one in store.stores[1:])
        return (
            f"{store.url} does not answer, and its log is read from a mirror ({mirrors}), which has it up to entry "
            f"{state.n}: what is newer is there again when {store.url} is; then penstock migrate run MIRROR --root "
            f"{store.url} copies it"
        )
    if (primary := marker.mirror_of) is None:
        return ""
    return (
        f"{store.url} is a mirror of {primary}, copied up to log entry {state.n}: what is newer comes by penstock "
        f"migrate run {store.url} --root {primary}"
    )


_ID_PREFIX = re.compile(r"v-[0-9a-f]{8,64}")
MOST_DIGITS = 18
"""Most digits of a version number: Python refuses to parse 4,301."""
_SHOWN = 20  # most names listed in a message; the rest are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRef:
    """A parsed reference: either `id_prefix`, or `dataset` with one of `number` and `name`."""

    dataset: str | None = None
    """Dataset; None with `id_prefix`."""
    number: int | None = None
    """Version number, or None."""
    name: str | None = None
    """Tag, alias, "latest" or None."""
    id_prefix: str | None = None
    """Beginning of a version id, or None."""

    def __str__(self) -> str:
        return self.id_prefix or f"{self.dataset}@{self.name or self.number}"


def parse_ref(text: str) -> ParsedRef:
    if not isinstance(text, str):
        raise InvalidName(
            f"{text!r} is a {type(text).__name__}; a version is named by a str such as 'photos@3', 'photos@latest' or "
            "'v-...'"
        )
    if text.startswith("v-"):
        if not _ID_PREFIX.fullmatch(text):
            raise InvalidName(f"{text!r} is no version id: 'v-' and at least 8 lower-case hex digits")
        return ParsedRef(id_prefix=text)
    dataset, at, name = text.partition("@")
    check_dataset_name(dataset)
    if not at or name == LATEST:
        return ParsedRef(dataset=dataset, name=LATEST)
    if name.isascii() and name.isdigit():
        if name.startswith("0"):
            raise InvalidName(f"{text[:100]!r}: versions are numbered from 1, without leading zeros")
        if len(name) > MOST_DIGITS:
            raise InvalidName(
                f"{text[:100]!r}: the number of a version has {len(name)} digits; it has {MOST_DIGITS} at most"
            )
        return ParsedRef(dataset=dataset, number=int(name))
    return ParsedRef(dataset=dataset, name=check_ref_name(name))


def resolve(state: State, ref: str | ParsedRef, *, retired: bool = False) -> VersionRecord:
    """Return the version that `ref` names in this state. retired: accept a retired version too.

    Raises: InvalidName; VersionNotFound, which lists the existing names; VersionRetired, with the reason.
    """
    parsed = ref if isinstance(ref, ParsedRef) else parse_ref(ref)
    record = _by_id(state, parsed) if parsed.id_prefix else _by_name(state, parsed)
    if record.retired is not None and not retired:
        raise VersionRetired(
            f"{parsed} is {record.name} ({record.id}), retired: {record.retired}; "
            f"{what_there_is(state, record.dataset)}",
            dataset=record.dataset,
        )
    return record


def what_there_is(state: State, dataset: str) -> str:
    """Return a line such as 'photos has versions 1..12 (retired 3), tags 2026.11.20, aliases prod'."""
    versions = state.versions(dataset)
    if not versions:
        return f"datasets here: {_listed(sorted(state.datasets))}"
    retired = [str(v.number) for v in versions if v.retired is not None]
    names = {
        kind: sorted(r.name for r in state.refs.values() if (r.dataset, r.ref_kind) == (dataset, kind))
        for kind in ("tag", "alias")
    }
    return (
        f"{dataset} has {'version 1' if len(versions) == 1 else f'versions 1..{len(versions)}'}"
        f"{f' (retired {_listed(retired)})' if retired else ''}, "
        f"tags {_listed(names['tag'])}, aliases {_listed(names['alias'])}"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "none"


def _by_name(state: State, parsed: ParsedRef) -> VersionRecord:
    dataset = parsed.dataset or ""
    versions = state.versions(dataset)
    if not versions:
        near = did_you_mean(dataset, state.datasets)
        raise VersionNotFound(
            f"no dataset {dataset!r}{near or ':'} {what_there_is(state, dataset)}", dataset=""
        )
    if parsed.name == LATEST:
        newest = state.newest(dataset)
        if newest is None:
            raise VersionRetired(
                f"every version of {dataset} was retired: {what_there_is(state, dataset)}", dataset=dataset
            )
        return newest
    ref = state.refs.get((dataset, parsed.name or ""))
    record = state.version(dataset, ref.number if ref else parsed.number or 0)
    if record is None:
        names = [LATEST, *(name for of, name in state.refs if of == dataset)]
        near = did_you_mean(parsed.name, names) if parsed.name else ""
        raise VersionNotFound(f"no {parsed}{near or ':'} {what_there_is(state, dataset)}", dataset=dataset)
    return record


def _by_id(state: State, parsed: ParsedRef) -> VersionRecord:
    prefix = parsed.id_prefix or ""
    ids = sorted(i for i in state.ids if i.startswith(prefix))
    if len(ids) > 1:
        raise VersionNotFound(
            f"{prefix} begins {len(ids)} version ids: {_listed(ids)}; type more of it", dataset=""
        )
    record = state.by_id(ids[0]) if ids else None
    if record is None:
        raise VersionNotFound(f"no version {prefix}: {what_there_is(state, '')}", dataset="")
    return record
