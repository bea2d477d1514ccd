"""A dataset card as a value, which every rendering reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .tally import Counts, Numbers

FORMAT = 1
"""Format number of card.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardKind:
    """The samples of one kind. Classes are in their own order, including empty ones between."""

    name: str
    """Name."""
    modality: str
    """image, video, audio, text or other."""
    samples: int
    """Live samples."""
    splits: Mapping[str, int]
    """Split -> samples."""
    raw_objects: int | None
    """Distinct raw objects; None if the samples name none."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Split -> total length, in seconds; empty if unknown."""
    sound_s: float = 0.0
    """Length of clips with audio, in seconds."""
    without_seconds: int = 0
    """Samples of unknown length."""
    duration_s: Numbers | None = None
    """Lengths in seconds; None if unknown."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """Class of length -> samples."""
    sizes: Counts = field(default_factory=Counts)
    """"width x height" in px -> samples."""
    short_sides: Mapping[str, int] = field(default_factory=dict)
    """Class of the shorter side, in px -> samples."""
    aspects: Mapping[str, int] = field(default_factory=dict)
    """Class of aspect ratio -> samples."""
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
    """Name."""
    nbytes: int
    """Bytes of its shards, excluded samples included."""
    rows: int
    """Samples that have it, excluded ones included."""
    parts: int
    """Parts that have it."""
    fields: Mapping[str, int]
    """Field -> payload bytes."""
    modalities: tuple[str, ...]
    """Modalities of samples that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardColumn:
    """A column of the samples table."""

    name: str
    """Name."""
    type: str
    """Type in the manifest."""
    numbers: Numbers | None = None
    """Distribution of a numeric column."""
    counts: Counts | None = None
    """Value -> samples of a text column."""
    note: str = ""
    """Remark, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of a batch before its publication."""

    name: str
    """Name."""
    batches: int
    """Batches that passed it."""
    failed: int
    """Batches that failed it as a warning."""
    newest: str
    """Explanation for the newest batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The provenance of a version and its ancestors."""

    versions: int = 0
    """Versions up to this one."""
    publishes: int = 0
    """Versions with known provenance."""
    batches: int = 0
    """Batches of the pipeline."""
    accounted: int = 0
    """Batches with refusal codes on record."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Outcome (landed, used, rejected, left_out, ...) -> objects."""
    refused: tuple[tuple[str, str, str, int], ...] = ()
    """(outcome, stage, code, objects)."""
    policies: tuple[tuple[str, int], ...] = ()
    """(policy, batches)."""
    featurizers: tuple[tuple[str, str, str, int], ...] = ()
    """(name, version, parameters, batches)."""
    filters: tuple[tuple[str, int], ...] = ()
    """(filter, batches)."""
    checks: tuple[Check, ...] = ()
    """By name."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Name -> id of the producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example sample."""

    key: str
    """Key."""
    kind: str
    """Kind."""
    modality: str
    """Modality."""
    split: str
    """Its split, or ""."""
    facts: Mapping[str, str]
    """Name -> displayed value."""
    caption: str = ""
    """Its caption, or its text; "" for none."""
    picture: bytes = b""
    """JPEG or PNG; b"" for none."""
    media_type: str = ""
    """`image/jpeg` or `image/png`; "" for none."""
    width_px: int = 0
    """Pixels."""
    height_px: int = 0
    """Pixels."""
    alt: str = ""
    """Description of the image."""
    trouble: str = ""
    """Why there is no image, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A dataset card."""

    dataset: str
    """Dataset."""
    number: int
    """Version number."""
    id: str
    """Version id, `v-...`."""
    parent: str | None
    """Id of the parent version; None for the first."""
    created: str
    """Creation time, UTC."""
    samples: int
    """Live samples."""
    excluded_samples: int
    """Excluded samples."""
    excluded: Counts
    """Reason -> excluded samples."""
    kinds: tuple[CardKind, ...]
    """Kinds of samples, the largest first."""
    groups: tuple[Group, ...]
    """Groups, by name."""
    columns: tuple[CardColumn, ...]
    """Columns of the samples table, by name."""
    licences: Counts
    """Licence -> samples."""
    sources: Counts
    """Location of raw objects, without credentials -> samples."""
    folders: Counts
    """First folder of the raw key -> samples."""
    subjects: int | None
    """Distinct subjects; None if the samples name none."""
    raw_objects: int | None
    """Distinct raw objects; None if the samples name none."""
    history: History
    """Provenance."""
    examples: tuple[Example, ...]
    """Examples."""
    warnings: tuple[str, ...]
    """Sentences."""
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
        """Return the hours of a modality; None if unknown."""
        known = [kind.hours for kind in self.kinds if kind.modality == modality]
        hours_of_kinds = [hours for hours in known if hours is not None]
        return sum(hours_of_kinds) if hours_of_kinds else None

    @property
    def sound_hours(self) -> float:
        """Hours of clips with audio."""
        return sum(kind.sound_s for kind in self.kinds) / 3600
