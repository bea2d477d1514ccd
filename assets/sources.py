"""Sources of a dataset's raw objects: their places, the objects taken, and the size of a batch.

    DatasetSpec(..., sources=(
        Source(prefix="photos/", exclude=("*.tmp", "/photos/test/**")),            # of the landing resource
        Source(name="partner", url="s3://partner/drop", include=("*.mp4",), min_bytes=1_000,
               options={"key": dg.EnvVar("PARTNER_KEY"), "secret": dg.EnvVar("PARTNER_SECRET")}),
    ))

Patterns are those of .gitignore (through pathspec), against keys. Without a '/' they name files in any folder.
`**` spans folders, a '/' in front binds to the place itself, `!` takes back, and case counts (`*.[jJ][pP][gG]`).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from loader.errors import InvalidStore
from loader.storage import ObjectInfo
from loader.storage.store import key_fault, key_filter
from resources.storage import check_options

from .media.segments import TABLES
from .source_formats import JOINED, check_format, companions, strangers

if TYPE_CHECKING:
    from loader.dataset.columnar.choices import Options

ORIGINS = "_origins.json"
"""Beside the media, not one of them: {"<key>": {"licence": "...", "author", "title", "origin", "text"}}."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Sieve = Callable[[ObjectInfo], str]
"""Function that returns why an object is not taken, "" for one that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Largest size of a batch, and how long its objects wait for it to become full.

    Raises: ValueError.
    """

    max_objects: int = 4096
    """Most objects of a batch."""
    max_bytes: int = 64 * 2**30
    """Most bytes of a batch. A larger object is a batch by itself."""
    max_wait_s: float = 3600.0
    """Age of the oldest object, in seconds by the store's clock, at which a batch that is not full is made. 0 makes
    it at once, whatever its size. An hour is at most 8,760 batches a year from a source that never fills one;
    versions are made less often than that."""
    max_batches: int | None = None
    """About the most batches from one call, the rest comes with the next; None for no limit."""

    def __post_init__(self) -> None:
        counts = (self.max_objects, self.max_bytes, self.max_batches or 1)
        if not all(1 <= count < math.inf for count in counts) or not 0 <= self.max_wait_s < math.inf:
            raise ValueError(f"limits of a batch are 1 or more, max_wait_s 0 or more, got {self}")


DEFAULT_LIMITS = BatchLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Origin of notices of arrivals: files of JSON lines, or a queue. See `arrivals`."""

    url: str
    """Folder or URL whose objects are notices, or `sqs://<region>/<name>`. `sqs://<name>` takes the environment's
    region."""
    prefix: str = ""
    """Beginning of the keys of the files; "" for all."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the store, or of boto3's client (`endpoint_url`, `region_name`, `profile_name`,
    `aws_access_key_id` ...). Secrets only as `dg.EnvVar`."""

    def __post_init__(self) -> None:
        check_options("a feed", self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that raw objects of a dataset land in, and a choice of its objects.

    Raises: ValueError for a name, pattern or limit that cannot be; InvalidStore for a secret in plain text.
    """

    name: str = "landing"
    """Name on Dagster's pages, and of the source's state in the root."""
    url: str = ""
    """Folder or URL, may be a `dg.EnvVar`; "" for the landing resource's."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the store; secrets only as `dg.EnvVar`."""
    prefix: str = ""
    """Beginning of the keys that are listed; "" for all."""
    include: tuple[str, ...] = ()
    """Patterns; only objects that match one are taken, all when empty."""
    exclude: tuple[str, ...] = ()
    """Patterns; no object that matches one is taken."""
    min_bytes: int = 0
    """Size of the smallest object that is taken."""
    max_bytes: int | None = None
    """Size of the largest object that is taken; None for no limit."""
    objects_per_tick: int | None = None
    """Most objects that become batches in one tick; None for no limit."""
    objects_per_hour: int | None = None
    """Most objects that become batches in an hour; None for no limit."""
    listed: bool = True
    """True lets the sensor list the source. False is for a source that a feed and the reconcile job look after."""
    feed: Feed | None = None
    """Notices of arrivals; None for none."""
    format: str = ""
    """Format of the objects, such as "webdataset" or "parquet" (`source_formats`): their samples are taken as they are.
    "" for media, which are cut. All sources of a dataset have the same format, keep, key, fields and without."""
    keep: Literal["copy", "in place"] = "copy"
    """"copy" writes the samples of a format into the dataset; "in place" leaves the bytes where they landed, and a
    version is an index of them."""
    key: str | None = None
    """Column of a table that holds the keys; None for the number of the row."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Column of a table that becomes a field -> extension of the field, "" for the format's choice."""
    without: tuple[str, ...] = ()
    """Fields and columns of a format that are left out."""
    paused: bool = False
    """True takes nothing until the next deploy; `pausing` does it at run time."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"source {self.name!r}: use 1 to 64 letters, digits, '.', '_' or '-'")
        check_options(f"source {self.name!r}", self.options)
        if self.options and not self.url:
            raise ValueError(
                f"source {self.name!r} has options and no url: options of the landing resource are its own"
            )
        for name in ("objects_per_tick", "objects_per_hour", "max_bytes"):
            if (given := getattr(self, name)) is not None and not 1 <= given < math.inf:
                raise ValueError(f"source {self.name!r}: {name}={given}; accepted: 1 or more, or None")
        if not 0 <= self.min_bytes <= (self.min_bytes if self.max_bytes is None else self.max_bytes):
            raise ValueError(
                f"source {self.name!r}: min_bytes={self.min_bytes}, max_bytes={self.max_bytes}; accepted: "
                "0 <= min_bytes <= max_bytes"
            )
        if self.keep not in ("copy", "in place"):
            raise ValueError(f"source {self.name!r}: keep={self.keep!r}; accepted: 'copy' or 'in place'")
        if self.format:
            check_format(f"source {self.name!r}", self.format, self.keep == "in place", self.choices)
        elif self.keep == "in place" or self.is_choosy:
            raise ValueError(
                f"source {self.name!r}: keep='in place', key, fields and without are for a format; media are cut by "
                "the policy"
            )
        if not self.listed and self.format in JOINED:
            raise ValueError(
                f"source {self.name!r}: listed=False of {self.format}, whose raw objects lie in several files: no "
                "notice tells when the last one is there; let it be listed"
            )
        if not self.listed and self.feed is None:
            raise ValueError(f"source {self.name!r} is not listed and has no feed: nothing would arrive")
        self.sieve()

    @property
    def is_choosy(self) -> bool:
        """True where something was chosen of a format."""
        return bool(self.key is not None or self.fields or self.without)

    @property
    def choices(self) -> "Options":
        """Choices that a reader of the format takes."""
        from loader.dataset.columnar.choices import Options  # which media do without

        return Options(self.key, self.fields, frozenset(self.without))

    def sieve(self) -> Sieve:
        """Return the function that says why an object is not taken; "" for one that is taken.

        It raises InvalidStore for an object of a table's log: which files count changes with each commit.

        "not_media" (hidden, a folder marker, a table about the media, another tool's own file). "elsewhere" (not below
        prefix). "not_included" or "excluded". "not_listed" (its key is none that a store takes). "too_small" or
        "too_large".
        """
        unwanted = key_filter(self.include, self.exclude, f"source {self.name!r}")
        largest = self.max_bytes if self.max_bytes is not None else float("inf")
        beside, (log_of, is_stranger) = companions(self.format), strangers(self.format)

        def why(info: ObjectInfo) -> str:
            key = info.key
            if log := log_of(key):
                if reason := unwanted(key):
                    return reason
                raise InvalidStore(
                    f"{key} is of the log of a {log} table, which says what files of it count, and a source takes "
                    "files as they land: export its live rows as Parquet into a folder of their own, or leave the "
                    "table out (exclude=) and import it (penstock import parquet)"
                )
            if key_fault(key.removesuffix("/")):
                return unwanted(key) or "not_listed"
            if key.startswith(".") or "/." in key or key.endswith("/") or key == ORIGINS or key in TABLES:
                return "not_media"
            if (beside is not None and beside.search(key)) or is_stranger(key):
                return "not_media"
            if not key.startswith(self.prefix):
                return "elsewhere"
            if reason := unwanted(key):
                return reason
            if info.nbytes < self.min_bytes:
                return "too_small"
            return "too_large" if info.nbytes > largest else ""

        return why


LANDING = Source()
"""All of the landing resource."""


def check_sources(sources: tuple[Source, ...]) -> None:
    """Check the names and formats of sources. Raises: ValueError for none, two of one name, and several formats."""
    names = [source.name for source in sources]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"sources named {names}; accepted: one or more, each name once")
    told = [(one.format, one.keep, one.key, dict(one.fields), sorted(one.without)) for one in sources]
    if others := [one for one in told if one != told[0]]:
        raise ValueError(
            f"sources with (format, keep, key, fields, without) of {told[0]} and {others[0]}; accepted: one of them, "
            "else make two datasets"
        )
