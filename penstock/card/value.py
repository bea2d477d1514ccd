"""A dataset card as a value, from which every form of it is made: JSON, Markdown, HTML, Dagster's page."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .counting.tally import Counts, Numbers

FORMAT = 1
"""The number of card.json's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The samples of one kind. Classes are in their own order, with zeros between them."""

    name: str
    """The kind's name."""
    modality: str
    """Image, video, audio, text or other, by its fields."""
    samples: int
    """Live samples."""
    splits: Mapping[str, int]
    """Split -> samples."""
    raw_objects: int | None
    """Distinct raw objects; None where the samples do not name any."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Split -> length together; empty where no length is recorded."""
    sound_s: float = 0.0
    """Length of clips with an audio field, in seconds."""
    without_seconds: int = 0
    """Samples whose length is unknown."""
    duration_s: Numbers | None = None
    """Lengths of samples, in seconds; None where none is known."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """Class of length -> samples."""
    sizes: Counts = field(default_factory=Counts)
    """"width x height" in px -> samples."""
    short_sides: Mapping[str, int] = field(default_factory=dict)
    """Class of the shorter side in px -> samples."""
    aspects: Mapping[str, int] = field(default_factory=dict)
    """Class of width to height -> samples."""
    labels: Counts = field(default_factory=Counts)
    """Label -> samples."""
    languages: Counts = field(default_factory=Counts)
    """Language -> samples."""

    @property
    def hours(self) -> float | None:
        return sum(self.seconds.values()) / 3600 if self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields stored together."""

    name: str
    """The group's name."""
    nbytes: int
    """Bytes of its shards, with excluded samples."""
    rows: int
    """Samples that have it, excluded or not."""
    parts: int
    """Parts that have it."""
    fields: Mapping[str, int]
    """Field -> payload bytes."""
    modalities: tuple[str, ...]
    """Modalities of samples that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the samples table: its numbers, its names, or a note where it is neither."""

    name: str
    """The column's name."""
    type: str
    """Its type in the manifest."""
    numbers: Numbers | None = None
    """Its distribution; None for a column without numbers."""
    counts: Counts | None = None
    """Value -> samples; None for a column without names."""
    note: str = ""
    """A few words about it, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of samples before they were published."""

    name: str
    """The check's name."""
    batches: int
    """Batches that passed it."""
    failed: int
    """Batches that did not pass it, as a warning."""
    newest: str
    """Its explanation for the newest batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The making of a version and of all that it builds on."""

    versions: int = 0
    """Versions up to this one."""
    publishes: int = 0
    """Versions whose making is known."""
    batches: int = 0
    """Batches of the pipeline."""
    accounted: int = 0
    """Batches whose refused objects are known by code."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Landed, left_out, and outcomes of objects (used, rejected, ...) -> objects."""
    refused: tuple[tuple[str, str, str, int], ...] = ()
    """(outcome, stage, code, objects)."""
    policies: tuple[tuple[str, int], ...] = ()
    """(policy, batches)."""
    featurizers: tuple[tuple[str, str, str, int], ...] = ()
    """(name, version, parameters, batches)."""
    filters: tuple[tuple[str, int], ...] = ()
    """(filter, batches)."""
    checks: tuple[Check, ...] = ()
    """Checks of all batches, by name."""
    run: Mapping[str, str] = field(default_factory=dict)
    """The producer's ids in the manifest: name -> text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sample to look at."""

    key: str
    """Its key."""
    kind: str
    """Its kind's name."""
    modality: str
    """Its kind's modality."""
    split: str
    """Its split, or ""."""
    facts: Mapping[str, str]
    """Name -> value, for people."""
    caption: str = ""
    """The text that came with it, or the text that it is; "" without."""
    picture: bytes = b""
    """JPEG or PNG; b"" without, and then `trouble` may say why."""
    media_type: str = ""
    """The image's type, such as `image/jpeg`; "" without."""
    width_px: int = 0
    """The image's width, in pixels."""
    height_px: int = 0
    """The image's height, in pixels."""
    alt: str = ""
    """The image in words."""
    trouble: str = ""
    """The reason why there is no image, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A dataset card."""

    dataset: str
    """The dataset's name."""
    number: int
    """The version's number."""
    id: str
    """The version's id, `v-...`."""
    parent: str | None
    """The id of the version that it builds on; None for the first."""
    created: str
    """Creation of the version, UTC, as text."""
    samples: int
    """Live samples."""
    excluded_samples: int
    """Samples that the version leaves out."""
    excluded: Counts
    """Reason -> samples left out."""
    kinds: tuple[Kind, ...]
    """Kinds of samples, the largest first."""
    groups: tuple[Group, ...]
    """Groups, by name."""
    columns: tuple[Column, ...]
    """Columns of the samples table, by name."""
    licences: Counts
    """Licence -> samples."""
    sources: Counts
    """Place of the raw object, without credentials -> samples."""
    folders: Counts
    """First folder of the raw object's key -> samples."""
    subjects: int | None
    """Different subjects that the samples name; None where they name none."""
    raw_objects: int | None
    """Different raw objects that the samples name; None where they name none."""
    history: History
    """The version's making."""
    examples: tuple[Example, ...]
    """Samples to look at."""
    warnings: tuple[str, ...]
    """Warnings about the version, as sentences."""
    unknown: tuple[str, ...]
    """Sentences about facts that are not recorded."""

    @property
    def name(self) -> str:
        return f"{self.dataset}@{self.number}"

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def splits(self) -> dict[str, int]:
        """Split -> samples, the largest first."""
        total: dict[str, int] = {}
        for kind in self.kinds:
            for name, n in kind.splits.items():
                total[name] = total.get(name, 0) + n
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    def hours(self, modality: str) -> float | None:
        """Return the hours of everything of a modality; None where no length is recorded."""
        known = [kind.hours for kind in self.kinds if kind.modality == modality]
        hours_of_kinds = [hours for hours in known if hours is not None]
        return sum(hours_of_kinds) if hours_of_kinds else None

    @property
    def sound_hours(self) -> float:
        """Hours of clips with an audio field."""
        return sum(kind.sound_s for kind in self.kinds) / 3600
