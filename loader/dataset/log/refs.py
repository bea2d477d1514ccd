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
def explain_mirror_lag(store: Store, marker: Marker, state: State) -> Iterator[None]:
    """If a mirror's log lacks a version, say in the VersionNotFound how far the log was copied, and how to update it.

    Costs no request.
    """
    try:
        yield
    except VersionNotFound as error:
        lag = _lag(store, marker, state)
        if not lag:
            raise
        raise VersionNotFound(f"{error}; {lag}", dataset=error.dataset) from None


def dataset_versions(store: Store, marker: Marker, state: State, dataset: str) -> list[VersionRecord]:
    """Return every version of a dataset, oldest first. Raises: VersionNotFound, which names the datasets."""
    records = list(state.versions(dataset))
    if records:
        return records
    with explain_mirror_lag(store, marker, state):
        names = sorted(name for name, versions in state.datasets.items() if versions)
        near = did_you_mean(dataset, names)
        raise VersionNotFound(
            f"{store.url} has no dataset {dataset!r}{near or ';'} it has {', '.join(names) or 'none'}",
            dataset="",
        )


def _lag(store: Store, marker: Marker, state: State) -> str:
    """Return how far the log that `state` was read from lags behind its primary; "" if it is the primary's."""
    if isinstance(store, MirroredStore):
        # Ask the store, not the marker, which a nearby mirror may have answered.
        if store.is_primary_healthy:
            return ""
        mirrors = ", ".join(mirror.url for mirror in store.stores[1:])
        return (
            f"{store.url} does not answer, and its log is read from a mirror ({mirrors}), which has it up to entry "
            f"{state.n}: what is newer is there again when {store.url} is; then penstock migrate run MIRROR --root "
            f"{store.url} copies it"
        )
    primary = marker.mirror_of
    if primary is None:
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
        if self.id_prefix:
            return self.id_prefix
        return f"{self.dataset}@{self.name or self.number}"


def parse_ref(text: str) -> ParsedRef:
    """Return the parsed reference. Raises: InvalidName."""
    if not isinstance(text, str):
        raise InvalidName(
            f"{text!r} is a {type(text).__name__}; a version is named by a str such as 'photos@3', 'photos@latest' or "
            "'v-...'"
        )
    if text.startswith("v-"):
        if not _ID_PREFIX.fullmatch(text):
            raise InvalidName(f"{text!r} is not a version id: 'v-' and at least 8 lower-case hex digits")
        return ParsedRef(id_prefix=text)
    dataset, at_sign, name = text.partition("@")
    check_dataset_name(dataset)
    if not at_sign or name == LATEST:
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
    parsed = ref
    if not isinstance(parsed, ParsedRef):
        parsed = parse_ref(parsed)
    if parsed.id_prefix:
        record = _by_id(state, parsed.id_prefix)
    else:
        record = _by_name(state, parsed)
    if record.retired is not None and not retired:
        raise VersionRetired(
            f"{parsed} is {record.name} ({record.id}), retired: {record.retired}; "
            f"{existing_names(state, record.dataset)}",
            dataset=record.dataset,
            what=str(parsed),
            where=record.id,
            given=record.retired,
        )
    return record


def existing_names(state: State, dataset: str) -> str:
    """Return a line such as 'photos has versions 1..12 (retired 3), tags 2026.11.20, aliases prod'.

    For an unknown dataset, the line has the names of the datasets.
    """
    versions = state.versions(dataset)
    if not versions:
        return f"datasets here: {_enumerate(sorted(state.datasets))}"

    numbers = "version 1"
    if len(versions) > 1:
        numbers = f"versions 1..{len(versions)}"
    retired = [str(version.number) for version in versions if version.retired is not None]
    if retired:
        numbers += f" (retired {_enumerate(retired)})"

    names: dict[str, list[str]] = {"tag": [], "alias": []}
    for ref in state.refs.values():
        if ref.dataset == dataset:
            names[ref.ref_kind].append(ref.name)
    tags = _enumerate(sorted(names["tag"]))
    aliases = _enumerate(sorted(names["alias"]))
    return f"{dataset} has {numbers}, tags {tags}, aliases {aliases}"


def _enumerate(names: list[str]) -> str:
    if not names:
        return "none"
    text = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        text += f" and {len(names) - _SHOWN} more"
    return text


def _by_name(state: State, parsed: ParsedRef) -> VersionRecord:
    """Return the version of a reference without `id_prefix`: by "latest", by number, or by tag or alias."""
    dataset = parsed.dataset or ""
    versions = state.versions(dataset)
    if not versions:
        near = did_you_mean(dataset, state.datasets)
        datasets = existing_names(state, dataset)
        raise VersionNotFound(
            f"no dataset {dataset!r}{near or ':'} {datasets}", dataset="", what="dataset", given=dataset
        )
    if parsed.name == LATEST:
        newest = state.newest(dataset)
        if newest is None:
            versions_here = existing_names(state, dataset)
            message = f"every version of {dataset} was retired: {versions_here}"
            raise VersionRetired(message, dataset=dataset, what="version", given=dataset)
        return newest

    number = parsed.number or 0  # no version has 0: it stays for a name that is neither a tag nor an alias
    ref = state.refs.get((dataset, parsed.name or ""))
    if ref is not None:
        number = ref.number
    record = state.version(dataset, number)
    if record is None:
        near = ""
        if parsed.name:
            names = [name for ref_dataset, name in state.refs if ref_dataset == dataset]
            near = did_you_mean(parsed.name, [LATEST, *names])
        versions_here = existing_names(state, dataset)
        raise VersionNotFound(
            f"no {parsed}{near or ':'} {versions_here}", dataset=dataset, what="version", given=str(parsed)
        )
    return record


def _by_id(state: State, prefix: str) -> VersionRecord:
    whole_id = state.by_id(prefix)  # 2 ms for 800 versions if they are compared one by one
    if whole_id is not None:
        return whole_id
    ids = sorted(version_id for version_id in state.ids if version_id.startswith(prefix))
    if len(ids) > 1:
        message = f"{prefix} begins {len(ids)} version ids: {_enumerate(ids)}; type more of it"
        raise VersionNotFound(message, dataset="", what="id", given=prefix, accepted=ids)
    record = None
    if ids:
        record = state.by_id(ids[0])
    if record is None:
        raise VersionNotFound(
            f"no version {prefix}: {existing_names(state, '')}", dataset="", what="id", given=prefix
        )
    return record
