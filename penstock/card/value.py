"""A dataset card as a value: what every form of it - JSON, Markdown, HTML, Dagster's page - is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .counting.tally import Counts, Numbers

FORMAT = 1
"""Of card.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The samples of one kind. modality: image, video, audio, text or other, by its fields.

    splits: split -> samples; raw_objects: distinct ones, None where the samples do not name any; seconds: split ->
    length together, empty where no length is recorded; sound_s: of these, the length of clips that have their sound
    beside them; without_seconds: samples whose length is unknown; classes in their own order, with zeros.
    """

    name: str
    modality: str
    samples: int
    splits: Mapping[str, int]
    raw_objects: int | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    sound_s: float = 0.0
    without_seconds: int = 0
    duration_s: Numbers | None = None
    durations: Mapping[str, int] = field(default_factory=dict)
    sizes: Counts = field(default_factory=Counts)
    short_sides: Mapping[str, int] = field(default_factory=dict)
    aspects: Mapping[str, int] = field(default_factory=dict)
    labels: Counts = field(default_factory=Counts)
    languages: Counts = field(default_factory=Counts)

    @property
    def hours(self) -> float | None:
        return sum(self.seconds.values()) / 3600 if self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields stored together. nbytes: of their shards, those of excluded samples among them.

    rows: samples that have it, excluded or not; fields: name -> payload bytes; kinds: which modalities have it.
    """

    name: str
    nbytes: int
    rows: int
    parts: int
    fields: Mapping[str, int]
    modalities: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the samples table: its numbers, its names, or a note where it is neither."""

    name: str
    type: str
    numbers: Numbers | None = None
    counts: Counts | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was checked before samples were published. batches: how many passed it, `failed` how many did not
    (as a warning); newest: what it said of the newest batch."""

    name: str
    batches: int
    failed: int
    newest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """How the version came about. publishes: versions whose making is known, of `versions` up to this one.

    batches: of the pipeline; counts: objects landed, used, rejected, dropped; refused: (outcome, stage, code) ->
    objects; featurizers: (name, version, parameters) -> batches; policies, filters: text -> batches; accounted: batches
    whose refused objects are known by code.
    """

    versions: int = 0
    publishes: int = 0
    batches: int = 0
    accounted: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[tuple[str, str, str, int], ...] = ()
    policies: tuple[tuple[str, int], ...] = ()
    featurizers: tuple[tuple[str, str, str, int], ...] = ()
    filters: tuple[tuple[str, int], ...] = ()
    checks: tuple[Check, ...] = ()
    run: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sample to look at. facts: name -> value.

    caption: the text that came with it, or the text that it is; picture: JPEG or PNG, or empty with the `trouble` that
    it met; alt: the picture in words.
    """

    key: str
    kind: str
    modality: str
    split: str
    facts: Mapping[str, str]
    caption: str = ""
    picture: bytes = b""
    media_type: str = ""
    width_px: int = 0
    height_px: int = 0
    alt: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A dataset card.

    created: of the version, UTC; excluded: reason -> samples left out; sources: where the raw objects lie; folders:
    the first word of their keys; subjects, raw_objects: how many different ones the samples name, None where they
    name none; warnings: what nobody should miss; unknown: what could not be told, in sentences.
    """

    dataset: str
    number: int
    id: str
    parent: str | None
    created: str
    samples: int
    excluded_samples: int
    excluded: Counts
    kinds: tuple[Kind, ...]
    groups: tuple[Group, ...]
    columns: tuple[Column, ...]
    licences: Counts
    sources: Counts
    folders: Counts
    subjects: int | None
    raw_objects: int | None
    history: History
    examples: tuple[Example, ...]
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]

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
        """Of everything of a modality; None where no length is recorded."""
        known = [kind.hours for kind in self.kinds if kind.modality == modality]
        told = [hours for hours in known if hours is not None]
        return sum(told) if told else None

    @property
    def sound_hours(self) -> float:
        """Of sound that lies beside clips."""
        return sum(kind.sound_s for kind in self.kinds) / 3600
