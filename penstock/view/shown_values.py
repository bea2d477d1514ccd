"""Describe fields for display, by their kind: text, marks, tokens."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import loader
from loader.dataset.shards.address import FieldAddress, crc_text
from loader.keywords import is_whole_number
from loader.order.sources.items_view import ItemsView
from loader.order.sources.window_view import view_ordinals
from loader.run.recipe.recipe import stored_view

from ..class_names import find_class_names
from ..text import clean
from .json_record import JsonRecord, plain
from .kinds import find_kind
from .kinds.array_values import as_array
from .kinds.kind import Facts, Mark, TokenBox
from .kinds.tokens import LAYOUT, SEGMENTS
from .kinds.video import as_frames, length_marks
from .replays.replayed_values import Texts, special_tokens

MOST_LINES = 40
"""Lines per value."""
MOST_BOXES = 4096
"""Tokens shown individually."""
MOST_LETTERS = 2000
"""Characters per line."""

Ordinals = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownValue(JsonRecord):
    """A field's value, as displayed."""

    field: str
    """Field name."""
    kind: str
    """Name in `kinds.KINDS`."""
    lines: tuple[str, ...]
    """Shape, dtype and range, or text or tokens."""
    marks: tuple[Mark, ...]
    """Warnings."""
    boxes: tuple[TokenBox, ...] = ()
    has_thumbnail: bool = False
    """True if a small image can be drawn of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredField(JsonRecord):
    """A field of a sample: where its bytes are, and their value."""

    field: str
    """Field name."""
    path: str = ""
    """Shard's; "" if the field is not stored."""
    offset: int = 0
    """In the shard, in bytes."""
    nbytes: int = 0
    """Stored bytes."""
    crc32c: str = ""
    """8 hex digits; "not known" for unsealed registered bytes."""
    decoded: ShownValue | None
    """Value as the loader decodes it, before any transform, or None."""


def field_location(address: FieldAddress | None) -> dict[str, Any]:
    """Return the attributes of a `StoredField` that say where it is."""
    if address is None:
        return {}
    return {
        "path": address.path,
        "offset": address.offset,
        "nbytes": address.nbytes,
        "crc32c": crc_text(address.crc32c) or "not known",
    }


def version_of(plan: "loader.Plan", source: str) -> "loader.Version | None":
    """Return a source's version; None without stored bytes."""
    view = stored_view(plan.sources[source].view)
    if view is None:
        return None
    return view.version


def dataset_facts(plan: "loader.Plan") -> dict[str, str]:
    """Return source -> facts about its dataset, for sources that are datasets."""
    facts: dict[str, str] = {}
    for name, planned in plan.sources.items():
        view = planned.view
        if isinstance(view, ItemsView):
            facts[name] = clean(f"source {name}: {view.describe()}, {len(view):,} items", 600)
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSample(JsonRecord):
    """A sample that a plan puts into a slot."""

    source: str
    """Name in the plan."""
    key: str
    version: str
    """Name; "" without stored bytes."""
    ordinal: int
    """Index in the version."""


def sample_names(plan: "loader.Plan", source: str, ordinals: Ordinals) -> Iterator[dict[str, Any]]:
    """Yield key, version and ordinal of a source's samples, as in `PlannedSample`."""
    view = plan.sources[source].view
    version = version_of(plan, source)
    name = ""
    if version is not None:
        name = version.name
    keys = view.keys(ordinals) if len(ordinals) else []
    for key, ordinal in zip(keys, view_ordinals(view, ordinals).tolist(), strict=True):
        yield {"key": key, "version": name, "ordinal": ordinal}


def field_facts(
    sample: Mapping[str, Any], field: str, version: "loader.Version | None", texts: Texts | None = None
) -> Facts:
    """Return the known facts about a field. version: the sample's. texts: decoded tokens."""
    facts: dict[str, Any] = {}
    if version is not None:
        facts = dict(version.facts.get(field, {}))
        if field.rpartition(".")[2] == "cls" and (labels := find_class_names(version)):
            facts.setdefault("labels", labels)
    # A writer's facts may be any JSON, so values of unexpected types are ignored.
    vocabulary, rate = (facts.get(name) for name in ("vocabulary", "rate"))
    names = (facts.get("tokenizer"), facts.get("tokenizer_sha256"))
    tokenizer = ", SHA-256 ".join(clean(one, 120) for one in names if isinstance(one, str) and one)
    return Facts(
        field=field,
        sample=sample,
        tokenizer=tokenizer,
        labels=facts.get("labels"),
        vocabulary=vocabulary if is_whole_number(vocabulary, 1) else None,
        special=special_tokens(facts),
        rate=float(rate) if is_whole_number(rate, 1) else None,
        decode=partial(_text, texts[field]) if texts and field in texts else None,
    )


def _text(texts: Mapping[int, str], ids: Sequence[int]) -> str:
    return "".join(texts.get(token, "") for token in ids)


def show_value(field: str, value: object, facts: Facts) -> ShownValue:
    kind = find_kind(value, facts)
    marks = tuple(kind.marks(value, facts))
    if _is_of_packing(facts):  # a sequence may be one document, and its documents often have one value
        marks = tuple(one for one in marks if one.name != "constant")
    return ShownValue(
        field=clean(field, 200),
        kind=kind.name,
        lines=tuple(line[:MOST_LETTERS] for line in kind.lines(value, facts)[:MOST_LINES]),
        marks=marks,
        boxes=kind.boxes(value, facts)[:MOST_BOXES],
        has_thumbnail=_has_thumbnail(kind.name, value),
    )


def _is_of_packing(facts: Facts) -> bool:
    """Return whether a value is the layout of a packed sequence, or a column: names of fields have an ending."""
    if not any(name.endswith(f".{SEGMENTS}") for name in facts.sample):
        return False
    return "." not in facts.field or facts.word in LAYOUT


def _has_thumbnail(kind: str, value: object) -> bool:
    if kind != "array":
        return kind in ("image", "video", "audio")
    array = as_array(value)
    # Arrays of fewer dimensions are shown as text.
    return array is not None and array.ndim >= 2 and array.size > 0


def show_sample(
    sample: Mapping[str, Any],
    version: "loader.Version | None",
    texts: Texts | None = None,
    cut: Mapping[str, str] | None = None,
) -> tuple[ShownValue, ...]:
    """Return every field in order. texts: decoded tokens.

    cut: partly decoded field -> text about its length; audio and video lengths are then not compared.
    """
    facts = {name: field_facts(sample, name, version, texts) for name in sample}
    values = [show_value(name, value, facts[name]) for name, value in sample.items()]
    if cut:
        return tuple(
            replace(item, lines=(cut[name], *item.lines)) if name in cut else item
            for name, item in zip(sample, values, strict=True)
        )
    lengths = {
        name: (item.kind, _units(item.kind, value), facts[name].rate or 0.0)
        for item, (name, value) in zip(values, sample.items(), strict=True)
        if facts[name].rate and item.kind in ("audio", "video")
    }
    audio_s = {clean(name, 80): n / rate for name, (kind, n, rate) in lengths.items() if kind == "audio"}
    for at, name in enumerate(sample):
        kind, n, rate = lengths.get(name, ("", 0, 0.0))
        if kind == "video":
            values[at] = replace(
                values[at], marks=(*values[at].marks, *length_marks(n / rate, audio_s, 1 / rate))
            )
    return tuple(values)


def _units(kind: str, value: object) -> int:
    array = as_array(value)
    if array is None:
        return 0
    if kind != "video":
        return int(array.shape[-1])
    clip = as_frames(array)
    if clip is None:
        return 0
    return int(clip.shape[0])


_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "audio/wav": "wav",
    "video/mp4": "mp4",
}
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def save(folder: Path, record: Mapping[str, Any], slots: Mapping[int, Mapping[str, Any]]) -> list[Path]:
    """Write `record.json` and each slot's values into a folder; return the paths.

    slots: slot -> field -> value. Arrays are written bit for bit; media also as image and audio files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "record.json"]
    written[0].write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    for slot, sample in slots.items():
        for field, value in sample.items():
            stem = folder / f"slot-{slot:05d}-{_ODD.sub('_', field)[:80]}"
            facts = field_facts(sample, field, None)
            media = find_kind(value, facts).detail(value, facts)
            for i, item in enumerate(media):
                number = ""
                if len(media) > 1:
                    number = f"-{i:03d}"
                written.append(Path(f"{stem}{number}.{_ENDINGS.get(item.type, 'bin')}"))
                written[-1].write_bytes(item.data)
            written.append(_save_value(stem, value))
    return written


def _save_value(stem: Path, value: Any) -> Path:
    if isinstance(value, bytes):
        path = Path(f"{stem}.bin")
        path.write_bytes(value)
    elif hasattr(value, "__array__") and hasattr(value, "ndim") and value.ndim:
        path = Path(f"{stem}.npy")
        np.save(path, _load_array(value), allow_pickle=False)
    else:
        path = Path(f"{stem}.json")
        scalar = value.item() if hasattr(value, "item") else value
        path.write_text(json.dumps(plain(scalar), ensure_ascii=False), encoding="utf-8")
    return path


def _load_array(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except TypeError:  # bfloat16 and other dtypes that only torch has
        import torch

        array: np.ndarray[Any, Any] = value.contiguous().view(torch.uint8).numpy()
        return array
