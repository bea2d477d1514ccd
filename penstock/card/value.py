"""Dataset cards as values, from which every format is rendered, and as JSON.

`front_matter` is Hugging Face Hub metadata (huggingface/hub-docs, datasetcard.md).
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from ..text import clean, yaml_text
from .classes import MODALITIES, hub_language, hub_licence, size_category
from .tally import Counts, Numbers

FORMAT = 1
"""Format number of card.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardKind:
    """One kind's samples; classes are in natural order, with empty ones between others."""

    name: str
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
        if self.seconds:
            return sum(self.seconds.values()) / 3600
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields stored together."""

    name: str
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
        if hours_of_kinds:
            return sum(hours_of_kinds)
        return None

    @property
    def sound_hours(self) -> float:
        """Hours of clips with audio."""
        return sum(kind.sound_s for kind in self.kinds) / 3600


def card_document(card: Card, sheets: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return JSON values. sheets: kind -> file name of its contact sheet."""
    document: dict[str, Any] = _json(card) | {
        "card": FORMAT,
        "name": card.name,
        "version": card.id,
        "nbytes": card.nbytes,
        "hours": {
            "video": card.hours("video"),
            "audio": card.hours("audio"),
            "sound_with_video": card.sound_hours,
        },
        "splits": card.splits,
        "kinds": [_kind(kind) for kind in card.kinds],
        "history": _history(card.history),
        "examples": [_example(example) for example in card.examples],
        "pictures": dict(sheets or {}),
        "hub": {
            "license": hub_licences(card),
            "language": sorted(languages(card)),
            "task_categories": list(tasks(card)),
            "tags": tags(card),
        },
    }
    del document["id"]  # card.json calls it "version"
    return document


def _json(value: Any) -> Any:
    """Return a card's value as JSON values: a dataclass as an object of its fields, a tuple as a list."""
    if isinstance(value, Counts):
        # A list, because a JSON object would lose the order.
        counts = [{"name": name, "n": n} for name, n in value.counts]
        return {
            "counts": counts,
            "n_other_names": value.n_others,
            "others": value.others,
            "unknown": value.unknown,
            "complete": value.complete,
        }
    if is_dataclass(value):
        names = [one.name for one in fields(value)]
        return {name: _json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    return value


def render_json(card: Card, sheets: Mapping[str, str] | None = None) -> str:
    """Return `card_document` with sorted keys."""
    body = card_document(card, sheets)
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _kind(kind: CardKind) -> dict[str, Any]:
    document: dict[str, Any] = _json(kind)
    document["durations"] = _class_rows(kind.durations)
    document["short_sides"] = _class_rows(kind.short_sides)
    document["aspects"] = _class_rows(kind.aspects)
    document["hours"] = kind.hours
    return document


def _class_rows(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the classes in order: a list, because a JSON object would lose it."""
    return [{"name": name, "n": n} for name, n in counts.items()]


def _history(history: History) -> dict[str, Any]:
    document: dict[str, Any] = _json(history)
    del document["counts"]  # card.json calls them "objects"
    return document | {
        "objects": dict(history.counts),
        "refused": _name_rows(("outcome", "stage", "code", "n"), history.refused),
        "policies": _name_rows(("policy", "batches"), history.policies),
        "featurizers": _name_rows(("name", "version", "parameters", "batches"), history.featurizers),
        "filters": _name_rows(("filter", "batches"), history.filters),
    }


def _name_rows(names: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def _example(example: Example) -> dict[str, Any]:
    document: dict[str, Any] = _json(example)
    del document["picture"]  # bytes; JSON has their hash and their number
    digest = None
    if example.picture:
        digest = hashlib.sha256(example.picture).hexdigest()
    return document | {"picture_sha256": digest, "picture_nbytes": len(example.picture)}


_SLUG = re.compile(r"[^a-z0-9.]+")


def front_matter(card: Card) -> str:
    """Return YAML between two '---' lines."""
    lines = ["---", f"pretty_name: {yaml_text(card.dataset)}"]
    licences = hub_licences(card)
    lines += _list("license", licences)
    if "other" in licences:
        lines.append(f"license_name: {yaml_text(_other_licences(card))}")
    lines += _list("language", sorted(languages(card)))
    lines += _list("size_categories", [size_category(card.samples)])
    lines += _list("task_categories", list(tasks(card)))
    lines += _list("tags", tags(card))
    return "\n".join([*lines, "---"])


def hub_licences(card: Card) -> list[str]:
    """Return identifiers; 'other' and 'unknown' come last."""
    licences = {hub_licence(name) for name, _ in card.licences.counts}
    if card.licences.n_others or not card.licences.complete:
        licences.add("other")
    if card.licences.unknown:
        licences.add("unknown")
    last = {"other": 1, "unknown": 2}
    return sorted(licences, key=lambda name: (last.get(name, 0), name))


def _other_licences(card: Card) -> str:
    """Return the Hub's `license_name`, for licences that the Hub has no identifier for."""
    names = [name for name, _ in card.licences.counts if hub_licence(name) == "other"]
    if len(names) != 1 or card.licences.n_others:
        return "several-see-the-card"
    short_name = clean(names[0], 80).lower()
    slug = _SLUG.sub("-", short_name).strip("-")
    return slug or "see-the-card"


def languages(card: Card) -> set[str]:
    """Return the samples' ISO 639 codes."""
    named = {name for kind in card.kinds for name, _ in kind.languages.counts}
    return {code for code in map(hub_language, named) if code}


def tasks(card: Card) -> Iterator[str]:
    """Yield the tasks that the fields support."""
    fields = {
        modality: {name for group in card.groups if modality in group.modalities for name in group.fields}
        for modality in MODALITIES
    }
    has = {kind.modality for kind in card.kinds}
    if "image" in has and "cls" in fields["image"]:
        yield "image-classification"
    if "image" in has and "caption.txt" in fields["image"]:
        yield "image-to-text"
    if "text" in has:
        yield "text-generation"


def tags(card: Card) -> list[str]:
    modalities = sorted({kind.modality for kind in card.kinds} & set(MODALITIES))
    return [*modalities, "webdataset", "penstock"]


def _list(name: str, values: list[str]) -> list[str]:
    if values:
        return [f"{name}:", *(f"- {yaml_text(value)}" for value in values)]
    return []
