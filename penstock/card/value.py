"""Dataset cards as values, from which every format is rendered."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .tally import Counts, Numbers

FORMAT = 1
"""Format number of card.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardKind:
    """One kind's samples; classes are in natural order, with empty ones between others."""

    name: str
    """Kind name."""
    modality: str
    """image, video, audio, text or other."""
    samples: int
    """Live samples."""
    splits: Mapping[str, int]
    """Samples by split."""
    raw_objects: int | None
    """Distinct; None if no sample names one."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Total by split; empty if unknown."""
    sound_s: float = 0.0
    """Seconds of clips with audio."""
    without_seconds: int = 0
    """Samples of unknown duration."""
    duration_s: Numbers | None = None
    """In seconds; None if all are unknown."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """Samples by class."""
    sizes: Counts = field(default_factory=Counts)
    """Samples by "width x height" in pixels."""
    short_sides: Mapping[str, int] = field(default_factory=dict)
    """Samples by class."""
    aspects: Mapping[str, int] = field(default_factory=dict)
    """Samples by class."""
    labels: Counts = field(default_factory=Counts)
    """Samples by label."""
    languages: Counts = field(default_factory=Counts)
    """Samples by language."""

    @property
    def hours(self) -> float | None:
        return sum(self.seconds.values()) / 3600 if self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields stored together."""

    name: str
    """Group name."""
    nbytes: int
    """Bytes of its shards, excluded samples included."""
    rows: int
    """Samples with it, excluded ones included."""
    parts: int
    """Parts with it."""
    fields: Mapping[str, int]
    """Payload bytes."""
    modalities: tuple[str, ...]
    """Modalities of its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardColumn:
    """A column of the samples table."""

    name: str
    """Column name."""
    type: str
    """As in the manifest."""
    numbers: Numbers | None = None
    """Distribution if numeric."""
    counts: Counts | None = None
    """Samples by value, if text."""
    note: str = ""
    """Remark, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A gate check over all batches."""

    name: str
    """Check name."""
    batches: int
    """Batches that passed."""
    failed: int
    """Batches published although it failed."""
    newest: str
    """Newest batch's explanation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Provenance of a version and its ancestors."""

    versions: int = 0
    """Versions up to and including this one."""
    publishes: int = 0
    """Versions with known provenance."""
    batches: int = 0
    """Versions with a stage record of the pipeline."""
    accounted: int = 0
    """Batches that recorded refusal codes."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Outcome (landed, used, rejected, left_out, ...) -> raw objects."""
    refused: tuple[tuple[str, str, str, int], ...] = ()
    """(outcome, stage, code, raw objects)."""
    policies: tuple[tuple[str, int], ...] = ()
    """(policy, batches)."""
    featurizers: tuple[tuple[str, str, str, int], ...] = ()
    """(name, version, parameters, batches)."""
    filters: tuple[tuple[str, int], ...] = ()
    """(filter, batches)."""
    checks: tuple[Check, ...] = ()
    """By name."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Producer's properties, such as `run_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    key: str
    """Sample key."""
    kind: str
    """Kind name."""
    modality: str
    """The kind's."""
    split: str
    """Split, or ""."""
    facts: Mapping[str, str]
    """Name -> displayed value."""
    caption: str = ""
    """Caption, or the text of a text sample, or ""."""
    picture: bytes = b""
    """JPEG or PNG, or b""."""
    media_type: str = ""
    """`image/jpeg` or `image/png`, or ""."""
    width_px: int = 0
    """In pixels."""
    height_px: int = 0
    """In pixels."""
    alt: str = ""
    """Describes the image."""
    trouble: str = ""
    """Why there is no image, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    dataset: str
    """Dataset name."""
    number: int
    """Version number."""
    id: str
    """Version id, `v-...`."""
    parent: str | None
    """Id of the parent version; None for the first version."""
    created: str
    """UTC."""
    samples: int
    """Live samples."""
    excluded_samples: int
    """Excluded samples."""
    excluded: Counts
    """By reason."""
    kinds: tuple[CardKind, ...]
    """Largest first."""
    groups: tuple[Group, ...]
    """By name."""
    columns: tuple[CardColumn, ...]
    """Columns of the samples table, sorted by name."""
    licences: Counts
    """Samples by licence."""
    sources: Counts
    """Samples by raw location, without credentials."""
    folders: Counts
    """First folder of the raw key -> sample count."""
    subjects: int | None
    """Distinct subjects; None if no sample names one."""
    raw_objects: int | None
    """Distinct raw objects; None if no sample names one."""
    history: History
    """Provenance."""
    examples: tuple[Example, ...]
    """Samples."""
    warnings: tuple[str, ...]
    """Sentences."""
    unknown: tuple[str, ...]
    """Sentences on facts not recorded."""

    @property
    def name(self) -> str:
        return f"{self.dataset}@{self.number}"

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def splits(self) -> dict[str, int]:
        """Samples, largest split first."""
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
        """Hours of clips with audio."""
        return sum(kind.sound_s for kind in self.kinds) / 3600
