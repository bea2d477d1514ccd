"""Records of samples that a person excluded, and of the ends of exclusions.

exclusions/<dataset>/<16 hex>.json      a random name, created once; only a takedown replaces or deletes it
"""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from loader.dataset.log.entries import DAMAGED, canonical, check_record_format
from loader.dataset.names import check_dataset_name
from loader.dataset.writing.exclude import Exclusions, StandingExclusion
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.json_text import is_text, parse_json_object
from loader.storage import Store
from loader.storage.threads import DaemonPool

if TYPE_CHECKING:
    from loader import Version

FORMAT = 1
SLICE_REASON = re.compile(r"slice (?P<slice>[^\s/]+/[a-z0-9][a-z0-9._-]{0,63}): (?P<why>.*)", re.DOTALL)
"""Reason of an exclusion that was made from a slice."""
_AT_ONCE = 16  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedSample:
    """An excluded sample with its provenance. Unknown facts are ""."""

    key: str
    unit_id: str = ""
    raw_uri: str = ""
    """URI of its raw object."""
    raw_sha256: str = ""
    """SHA-256 (hex) of the raw object."""
    whole_object: bool = False
    """True if every sample cut from the raw object is excluded, under any policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Samples that a person excluded, and why."""

    dataset: str
    """Dataset name."""
    samples: tuple[ExcludedSample, ...]
    """Samples, sorted by key."""
    reason: str
    """Person's reason."""
    by: str
    """Person's name."""
    page: str
    """URL of the decision's page, or ""."""
    version: str
    """Version in which the person saw the samples, such as `photos@3`."""
    version_id: str
    at_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    """Time of the record, UTC microseconds."""
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """Record name, 16 random hex digits."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Sample keys, sorted."""
        return tuple(one.key for one in self.samples)

    @property
    def path(self) -> str:
        """The record's path in the root."""
        return _path(self.dataset, self.name)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "samples": [asdict(one) for one in self.samples]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Exclusion":
        """Return the record that `to_json` wrote. Ignores unknown fields. Raises: KeyError, TypeError."""
        facts = ("key", "unit_id", "raw_uri", "raw_sha256")
        samples = tuple(
            ExcludedSample(**_texts(one, facts), whole_object=one["whole_object"] is True)
            for one in body["samples"]
        )
        names = ("dataset", "reason", "by", "page", "version", "version_id", "name")
        return cls(**_texts(body, names), samples=samples, at_us=int(body["at_us"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """The end of exclusions: later builds include the samples."""

    dataset: str
    """Dataset name."""
    keys: tuple[str, ...]
    """Sample keys, sorted."""
    withdraws: tuple[str, ...]
    """Paths of these keys' exclusions, sorted."""
    reason: str
    """Person's reason."""
    by: str
    """Person's name."""
    page: str
    """URL of the decision's page, or ""."""
    at_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    """Time of the record, UTC microseconds."""
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """Record name, 16 random hex digits."""

    @property
    def path(self) -> str:
        """The record's path in the root."""
        return _path(self.dataset, self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **asdict(self),
            "keys": list(self.keys),
            "withdraws": list(self.withdraws),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Withdrawal":
        """Return the record that `to_json` wrote. Ignores unknown fields. Raises: KeyError, TypeError."""
        return cls(
            **_texts(body, ("dataset", "reason", "by", "page", "name")),
            keys=tuple(body["keys"]),
            withdraws=tuple(body["withdraws"]),
            at_us=int(body["at_us"]),
        )


def write_record(store: Store, record: Exclusion | Withdrawal) -> None:
    """Create the record."""
    store.put_if_absent(record.path, canonical(record.to_json()))


def records(store: Store, dataset: str) -> list[Exclusion | Withdrawal]:
    """Return every record of a dataset, oldest first. Costs a listing, and a GET per record, sixteen at a time."""
    paths = [info.key for info in store.list(_folder(dataset)) if info.key.endswith(".json")]
    with DaemonPool(_AT_ONCE, "penstock-exclusions") as pool:
        read = pool.map(lambda path: _read(store, path), paths)
        return sorted(filter(None, read), key=lambda record: (record.at_us, record.path))


def standing(history: Sequence[Exclusion | Withdrawal]) -> dict[str, tuple[Exclusion, ...]]:
    """Return key -> its exclusions that are not withdrawn, oldest first. history: every record, oldest first."""
    ended = {
        (path, key)
        for one in history
        if isinstance(one, Withdrawal)
        for path in one.withdraws
        for key in one.keys
    }
    stands: dict[str, tuple[Exclusion, ...]] = {}
    for record in history:
        if isinstance(record, Exclusion):
            path = record.path
            for key in record.keys:
                if (path, key) not in ended:
                    stands[key] = (*stands.get(key, ()), record)
    return stands


def standing_exclusions(store: Store, dataset: str) -> Exclusions:
    """Return key -> its oldest exclusion that stands. Costs as much as `records`."""
    stands = standing(records(store, dataset))
    return {
        key: StandingExclusion(reason=of_key[0].reason, record=of_key[0].path)
        for key, of_key in stands.items()
    }


def exclusion_line(version: "Version", parent: "Version | None") -> list[str]:
    """Return a report's line that changed objects' excluded samples stay out; [] if they are not concerned.

    A changed object is cut again, and its samples have the same keys: the standing exclusions exclude them, too.
    """
    is_new = parent is None or version.id != parent.id
    applied_exclusions = "exclusions" in version.manifest["producer"]
    if not is_new or not applied_exclusions:
        return []
    return [
        f"excluded samples of changed objects stay out; penstock exclude {version.dataset} --list names them"
    ]


def _read(store: Store, path: str) -> Exclusion | Withdrawal | None:
    try:
        return parse(store.get(path).data, path)
    # A takedown deleted it since the listing.
    except ObjectNotFound:
        return None


def parse(data: bytes | memoryview, path: str) -> Exclusion | Withdrawal:
    """Return the record in a file. Raises: FormatTooNew; Corrupt."""
    try:
        body = parse_json_object(bytes(data))
        check_record_format(int(body["format"]), FORMAT, path)
        record = Withdrawal.from_json(body) if "withdraws" in body else Exclusion.from_json(body)
        # A copy under another name would count as a second exclusion.
        if record.path != path:
            raise ValueError(f"it names itself {record.path}: it was copied or renamed")
        return record
    except FormatTooNew:
        raise
    except DAMAGED as error:
        message = f"{path} is not a record of an exclusion ({error}); restore it from a mirror"
        raise Corrupt(message, where=path, given=error, accepted="a record of an exclusion") from error


def _texts(body: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    if strange := [name for name in names if not is_text(body[name])]:
        raise TypeError(f"{strange[0]} = {body[strange[0]]!r:.100} is not text")
    return {name: body[name] for name in names}


def _folder(dataset: str) -> str:
    return f"exclusions/{check_dataset_name(dataset)}/"


def _path(dataset: str, name: str) -> str:
    return f"{_folder(dataset)}{name}.json"
