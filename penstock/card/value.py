"""Dataset cards as values, from which every format is rendered."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .tally import Counts, Numbers

FORMAT = 1
"""Format number of card.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardKind:
    """The samples of one kind. Classes are in their natural order, and include empty ones between others."""

    name: str
    """Kind name."""
    modality: str
    """Modality: image, video, audio, text or other."""
    samples: int
    """Live samples."""
    splits: Mapping[str, int]
    """Split -> sample count."""
    raw_objects: int | None
    """Distinct raw objects; None if no sample names one."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Split -> total duration in seconds; empty if unknown."""
    sound_s: float = 0.0
    """Total duration of clips with audio, in seconds."""
    without_seconds: int = 0
    """Samples of unknown duration."""
    duration_s: Numbers | None = None
    """Durations in seconds; None if all are unknown."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """Duration class -> sample count."""
    sizes: Counts = field(default_factory=Counts)
    """"width x height" in pixels -> sample count."""
    short_sides: Mapping[str, int] = field(default_factory=dict)
    """Class of the shorter side -> sample count."""
    aspects: Mapping[str, int] = field(default_factory=dict)
    """Aspect ratio class -> sample count."""
    labels: Counts = field(default_factory=Counts)
    """Label -> sample count."""
    languages: Counts = field(default_factory=Counts)
    """Language -> sample count."""

    @property
    def hours(self) -> float | None:
        return sum(self.seconds.values()) / 3600 if self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group: fields stored together."""

    name: str
    """Group name."""
    nbytes: int
    """Total size of its shards in bytes, including excluded samples."""
    rows: int
    """Samples that have the group, including excluded ones."""
    parts: int
    """Parts that have the group."""
    fields: Mapping[str, int]
    """Field -> payload size in bytes."""
    modalities: tuple[str, ...]
    """Modalities of the samples that have the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardColumn:
    """A column of the samples table."""

    name: str
    """Column name."""
    type: str
    """Type according to the manifest."""
    numbers: Numbers | None = None
    """Distribution, for a numeric column."""
    counts: Counts | None = None
    """Samples per value, for a text column."""
    note: str = ""
    """Remark, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One gate check's results over all batches."""

    name: str
    """Check name."""
    batches: int
    """Batches that passed."""
    failed: int
    """Batches that were published although the check failed."""
    newest: str
    """Explanation of the newest batch's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The provenance of a version and its ancestors."""

    versions: int = 0
    """Versions up to and including this one."""
    publishes: int = 0
    """Versions with known provenance."""
    batches: int = 0
    """Pipeline batches, one per version with a stage record."""
    accounted: int = 0
    """Batches that recorded their refusal codes."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Outcome (landed, used, rejected, left_out, ...) -> raw object count."""
    refused: tuple[tuple[str, str, str, int], ...] = ()
    """(outcome, stage, code, raw object count) tuples."""
    policies: tuple[tuple[str, int], ...] = ()
    """(policy, batch count) pairs."""
    featurizers: tuple[tuple[str, str, str, int], ...] = ()
    """(name, version, parameters, batch count) tuples."""
    filters: tuple[tuple[str, int], ...] = ()
    """(filter, batch count) pairs."""
    checks: tuple[Check, ...] = ()
    """Checks, sorted by name."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Producer property, such as `run_id` -> its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example sample."""

    key: str
    """Sample key."""
    kind: str
    """Kind name."""
    modality: str
    """Modality of the kind."""
    split: str
    """Split, or "" if unknown."""
    facts: Mapping[str, str]
    """Name of a fact -> displayed value."""
    caption: str = ""
    """Caption, or the text of a text sample, or ""."""
    picture: bytes = b""
    """JPEG or PNG bytes, or b""."""
    media_type: str = ""
    """`image/jpeg` or `image/png`, or ""."""
    width_px: int = 0
    """Width in pixels."""
    height_px: int = 0
    """Height in pixels."""
    alt: str = ""
    """Description of the image."""
    trouble: str = ""
    """Reason for a missing image, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A dataset card."""

    dataset: str
    """Dataset name."""
    number: int
    """Version number."""
    id: str
    """Version id, `v-...`."""
    parent: str | None
    """Id of the parent version; None for the first version."""
    created: str
    """Creation time in UTC."""
    samples: int
    """Live samples."""
    excluded_samples: int
    """Excluded samples."""
    excluded: Counts
    """Reason -> excluded sample count."""
    kinds: tuple[CardKind, ...]
    """Kinds of samples, largest first."""
    groups: tuple[Group, ...]
    """Groups, sorted by name."""
    columns: tuple[CardColumn, ...]
    """Columns of the samples table, sorted by name."""
    licences: Counts
    """Licence -> sample count."""
    sources: Counts
    """Raw location, without credentials -> sample count."""
    folders: Counts
    """First folder of the raw key -> sample count."""
    subjects: int | None
    """Distinct subjects; None if no sample names one."""
    raw_objects: int | None
    """Distinct raw objects; None if no sample names one."""
    history: History
    """Provenance of the version."""
    examples: tuple[Example, ...]
    """Example samples."""
    warnings: tuple[str, ...]
    """Warnings, as sentences."""
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
        """Split -> sample count, largest first."""
        total: dict[str, int] = {}
        for kind in self.kinds:
            for name, n in kind.splits.items():
                total[name] = total.get(name, 0) + n
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    def hours(self, modality: str) -> float | None:
        """Return the total hours of a modality; None if unknown."""
        known = [kind.hours for kind in self.kinds if kind.modality == modality]
        hours_of_kinds = [hours for hours in known if hours is not None]
        return sum(hours_of_kinds) if hours_of_kinds else None

    @property
    def sound_hours(self) -> float:
        """Total hours of clips with audio."""
        return sum(kind.sound_s for kind in self.kinds) / 3600
