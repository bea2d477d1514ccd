"""Sources of a dataset's raw objects: locations, selection, formats and batch sizes.

    DatasetSpec(..., sources=(
        Source(prefix="photos/", exclude=("*.tmp", "/photos/test/**")),            # of the landing resource
        Source(name="partner", url="s3://partner/drop", include=("*.mp4",), min_bytes=1_000,
               options={"key": dg.EnvVar("PARTNER_KEY"), "secret": dg.EnvVar("PARTNER_SECRET")}),
    ))

Patterns follow .gitignore (through pathspec) and match keys. One without a '/' matches files in any folder, `**` spans
folders, a leading '/' anchors to the source, `!` negates, and case counts.

Samples of a walked format are byte ranges of an object. For a read format, an importer produces the samples.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from assets import invalid_option
from loader.errors import InvalidSpec, InvalidStore
from loader.storage import ObjectInfo
from loader.storage.store import key_fault, key_filter
from resources.storage import check_options

from .media.segments import SEGMENT_TABLES

if TYPE_CHECKING:
    from loader.dataset.columnar.choices import ColumnarOptions


JOINED = frozenset({"lance", "lerobot", "rosbag"})
"""Formats whose raw objects consist of several files, joined by `JoinedObjects`."""
KEYED_BY_PLACE = frozenset({"lance"})
"""Formats whose keys are unique in a source, since rows move between its objects."""


def in_place_formats() -> list[str]:
    """Return the formats whose samples may stay in place (`keep="in place"`)."""
    from penstock.formats.registry import REGISTERED

    return sorted(REGISTERED)


def read_formats() -> list[str]:
    """Return the formats that an importer reads. Their samples can only be copied."""
    from penstock.formats.registry import IMPORTED

    return sorted(IMPORTED)


def companions(format: str) -> re.Pattern[str] | None:
    """Return a pattern for objects that hold no samples but describe others; None without any."""
    if not format:
        return None
    from penstock.formats.registry import FORMATS

    entry = FORMATS.get(format)
    if entry:
        return entry.companions
    return None


def table_tests(format: str) -> tuple[Callable[[str], str], Callable[[str], bool]]:
    """Return two functions of a key, which find the files that only a table engine reads.

    The first returns the table format ("Delta") whose log has the key, or "". The second returns whether the key is an
    engine's auxiliary file, such as `_SUCCESS`.
    """
    if not format:
        return lambda key: "", lambda key: False
    from penstock.formats.registration.selection import is_no_table_file, table_log

    return partial(table_log, format), partial(is_no_table_file, format)


def check_format(
    whose: str,
    format: str,
    in_place: bool,
    options: "ColumnarOptions",
) -> None:
    """Raise InvalidSpec for an unsupported format of raw objects or its options. whose: name of the source."""
    from penstock.formats.importer import check_options
    from penstock.formats.registry import importer_named

    walked = in_place_formats()
    read = read_formats()
    if format not in walked + read:
        accepted = ", ".join(sorted(walked + read))
        raise invalid_option("format", format, f"{accepted}, or '' for media", whose)
    if in_place and format not in walked:
        raise InvalidSpec(
            f"{whose}: keep='in place' of {format}; accepted for {', '.join(walked)}. Use keep='copy'",
            what="keep",
            where=whose,
            given=format,
            accepted=walked,
        )
    check_options(format, importer_named(format), options)


ORIGINS = "_origins.json"
"""Beside the media: {"<key>": {"licence": "...", "author", "title", "origin", "text"}}."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Sieve = Callable[[ObjectInfo], str]
"""Object -> reason for skipping it; "" if it is selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Largest size of a batch, and how long objects wait for it to fill. Raises: InvalidSpec."""

    max_objects: int = 4096
    """Most objects per batch."""
    max_bytes: int = 64 * 2**30
    """Most bytes per batch, but for a larger object."""
    max_wait_s: float = 3600.0
    """Age of the oldest object, in seconds, at which an incomplete batch is made, and least time between two such
    batches; 0: at once. One hour makes at most 8,760 batches a year. An object's age counts from its date in the store,
    or from its first listing if that date is in the future.
    """
    max_batches: int | None = None
    """Approximate limit of batches per call; None: no limit."""

    def __post_init__(self) -> None:
        smallest = {"max_objects": 1, "max_bytes": 1, "max_batches": 1, "max_wait_s": 0}
        for name, low in smallest.items():
            limit = getattr(self, name)
            if name == "max_batches":
                limit = limit or 1  # None and 0: no limit
            if not low <= limit < math.inf:  # excludes NaN
                raise InvalidSpec(
                    f"limits of a batch are 1 or more, max_wait_s 0 or more, got {self}",
                    what=name,
                    given=limit,
                    accepted=f"{low} or more",
                )


DEFAULT_LIMITS = BatchLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Notices of new objects: JSON-lines files, or a queue. See `arrivals.feeds`."""

    url: str
    """Folder or URL of notice files, or `sqs://<region>/<name>`, `sqs://<name>`."""
    prefix: str = ""
    """Prefix of the notice files' keys; "" for all."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the store, or of boto3's client (`endpoint_url`, `region_name`, `profile_name`, `aws_access_key_id`
    ...). Secrets must be `dg.EnvVar`s.
    """

    def __post_init__(self) -> None:
        check_options("a feed", self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A location of raw objects, and which of them to ingest.

    Raises: InvalidSpec for an invalid name, pattern or limit; InvalidStore for a secret in plain text.
    """

    name: str = "landing"
    """Name in Dagster, and of the source's state in the root."""
    url: str = ""
    """Folder or URL, or a `dg.EnvVar` that names it; "" for the landing resource's URL."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the store. Secrets must be `dg.EnvVar`s."""
    prefix: str = ""
    """Prefix of the keys to list; "" for all."""
    include: tuple[str, ...] = ()
    """Patterns of objects to select; empty for all."""
    exclude: tuple[str, ...] = ()
    """Patterns of objects to leave out."""
    min_bytes: int = 0
    """Smallest accepted size, in bytes."""
    max_bytes: int | None = None
    """Largest accepted size, in bytes; None: no limit."""
    objects_per_tick: int | None = None
    """Most new objects per tick; None: no limit."""
    objects_per_hour: int | None = None
    """Most new objects per hour; None: no limit."""
    listed: bool = True
    """True lets the sensor list the source. If False, only feed and reconcile job find objects."""
    feed: Feed | None = None
    """Feed of notices about new objects or None."""
    format: str = ""
    """Format, such as "webdataset" (`read_formats`, `in_place_formats`), whose samples are ingested unchanged; "" for
    media, which are cut. All sources of a dataset share format, keep, key, fields, without and clocks.
    """
    keep: Literal["copy", "in place"] = "copy"
    """"copy" copies a format's samples into the dataset; "in place" leaves their bytes in the source."""
    key: str | None = None
    """Column of the keys; None: the row number."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Column to store as a field -> extension; "": the format's."""
    without: tuple[str, ...] = ()
    """Fields and columns to leave out."""
    clocks: Mapping[str, str] = field(default_factory=dict)
    """Topic of `mcap` or `rosbag` -> its clock, "log_time" or "stamp"; the topic "*" stands for all others."""
    paused: bool = False
    """True admits nothing until the next deploy; at run time the pause job does."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidSpec(
                f"source {self.name!r}: use 1 to 64 letters, digits, '.', '_' or '-'",
                what="name",
                given=self.name,
                accepted="1 to 64 letters, digits, '.', '_' or '-'",
            )
        owner = f"source {self.name!r}"
        check_options(owner, self.options)
        if self.options and not self.url:
            raise InvalidSpec(
                f"{owner} has options but no url: set the landing resource's options there",
                what="options",
                where=owner,
                accepted="a url",
            )
        for name in ("objects_per_tick", "objects_per_hour", "max_bytes"):
            if (limit := getattr(self, name)) is not None and not 1 <= limit < math.inf:
                raise invalid_option(name, limit, "1 or more, or None", owner)
        if not 0 <= self.min_bytes <= (self.min_bytes if self.max_bytes is None else self.max_bytes):
            raise InvalidSpec(
                f"{owner}: min_bytes={self.min_bytes}, max_bytes={self.max_bytes}; accepted: "
                "0 <= min_bytes <= max_bytes",
                what="min_bytes and max_bytes",
                where=owner,
                given=(self.min_bytes, self.max_bytes),
                accepted="0 <= min_bytes <= max_bytes",
            )
        if self.keep not in ("copy", "in place"):
            raise invalid_option("keep", self.keep, "'copy' or 'in place'", owner)
        if self.format:
            check_format(owner, self.format, self.keep == "in place", self.choices)
        elif self.keep == "in place" or self.is_choosy:
            raise InvalidSpec(
                f"{owner}: keep='in place', key, fields, without and clocks need a format; the policy "
                "cuts media",
                what="format",
                where=owner,
                given=self.format,
            )
        if not self.listed and self.format in JOINED:
            raise InvalidSpec(
                f"{owner}: listed=False of {self.format}, whose raw objects have several files: no "
                "notice shows that the last one arrived; use listed=True",
                what="listed",
                where=owner,
                given=self.format,
                accepted=True,
            )
        if not self.listed and self.feed is None:
            raise InvalidSpec(
                f"{owner} is not listed and has no feed: nothing would arrive", what="feed", where=owner
            )
        # A wrong pattern fails here, when the code location loads.
        self.sieve()

    @property
    def is_choosy(self) -> bool:
        """True if `key`, `fields`, `without` or `clocks` is set."""
        return bool(self.key is not None or self.fields or self.without or self.clocks)

    @property
    def choices(self) -> "ColumnarOptions":
        """Options for the format's reader."""
        from loader.dataset.columnar.choices import ColumnarOptions  # not needed for media

        return ColumnarOptions(self.key, self.fields, frozenset(self.without), clocks=self.clocks)

    def sieve(self) -> Sieve:
        """Return a function that gives the reason for skipping an object, or "" to select it.

        Reasons: "not_media" (hidden, a folder marker, a table about the media, another tool's file), "elsewhere" (not
        below prefix), "not_included", "excluded", "not_listed" (an invalid key), "too_small" or "too_large". It raises
        InvalidStore for an object of a table's log, because each commit changes which files count.
        """
        unwanted = key_filter(self.include, self.exclude, f"source {self.name!r}")
        largest = float("inf")
        if self.max_bytes is not None:
            largest = self.max_bytes
        companion_pattern = companions(self.format)
        table_format_of_log, is_auxiliary = table_tests(self.format)

        def why(info: ObjectInfo) -> str:
            key = info.key
            # Before the patterns of media: a table's log is not media, but must not be skipped in silence.
            if table_format := table_format_of_log(key):
                # A notice or an inventory also names objects outside the source: their tables must not stop it.
                if not key.startswith(self.prefix):
                    return "elsewhere"
                if reason := unwanted(key):
                    return reason
                raise InvalidStore(
                    f"{key} belongs to the log of a {table_format} table, which decides which files count, but a "
                    "source takes every file: export the live rows as Parquet into a folder of their own, or "
                    "exclude the table (exclude=) and import it (penstock import parquet)",
                    what=key,
                    given=f"{table_format} table",
                )
            if key_fault(key.removesuffix("/")):
                # An exclusion is the better reason: the owner has already dealt with the key.
                return unwanted(key) or "not_listed"
            is_hidden = key.startswith(".") or "/." in key
            is_folder_marker = key.endswith("/")
            is_about_media = key == ORIGINS or key in SEGMENT_TABLES
            if is_hidden or is_folder_marker or is_about_media:
                return "not_media"
            is_companion = companion_pattern is not None and companion_pattern.search(key) is not None
            if is_companion or is_auxiliary(key):
                return "not_media"
            if not key.startswith(self.prefix):
                return "elsewhere"
            if reason := unwanted(key):
                return reason
            if info.nbytes < self.min_bytes:
                return "too_small"
            if info.nbytes > largest:
                return "too_large"
            return ""

        return why


LANDING = Source()
"""Everything at the landing resource."""


def check_sources(sources: tuple[Source, ...]) -> None:
    """Raise InvalidSpec if there is no source, a name repeats, or formats differ."""
    names = [source.name for source in sources]
    if not names or len(set(names)) != len(names):
        raise InvalidSpec(
            f"sources named {names}; accepted: one or more, each name once",
            what="sources",
            given=names,
            accepted="one or more, each name once",
        )
    settings = [
        (one.format, one.keep, one.key, dict(one.fields), sorted(one.without), dict(one.clocks))
        for one in sources
    ]
    if others := [one for one in settings if one != settings[0]]:
        raise InvalidSpec(
            f"sources with (format, keep, key, fields, without, clocks) of {settings[0]} and {others[0]}; accepted: "
            "one of them, or make two datasets",
            what="sources",
            given=[settings[0], others[0]],
            accepted="one format, keep, key, fields, without and clocks",
        )
