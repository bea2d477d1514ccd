"""A card as JSON, and as Hugging Face Hub metadata (huggingface/hub-docs, datasetcard.md)."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..text import clean, yaml_text
from .classes import MODALITIES, hub_language, hub_licence, size_category
from .value import FORMAT, Card, CardColumn, CardKind, Example


def card_document(card: Card, sheets: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return JSON values. sheets: kind -> file name of its contact sheet."""
    return {
        "card": FORMAT,
        "dataset": card.dataset,
        "number": card.number,
        "name": card.name,
        "version": card.id,
        "parent": card.parent,
        "created": card.created,
        "samples": card.samples,
        "excluded_samples": card.excluded_samples,
        "excluded": card.excluded.to_json(),
        "raw_objects": card.raw_objects,
        "subjects": card.subjects,
        "nbytes": card.nbytes,
        "hours": {
            "video": card.hours("video"),
            "audio": card.hours("audio"),
            "sound_with_video": card.sound_hours,
        },
        "splits": card.splits,
        "licences": card.licences.to_json(),
        "kinds": [_kind(kind) for kind in card.kinds],
        "groups": [
            {name: getattr(group, name) for name in group.__slots__} | {"fields": dict(group.fields)}
            for group in card.groups
        ],
        "columns": [_column(column) for column in card.columns],
        "sources": card.sources.to_json(),
        "folders": card.folders.to_json(),
        "history": _history(card),
        "examples": [_example(example) for example in card.examples],
        "pictures": dict(sheets or {}),
        "hub": {
            "license": hub_licences(card),
            "language": sorted(languages(card)),
            "task_categories": list(tasks(card)),
            "tags": tags(card),
        },
        "warnings": list(card.warnings),
        "unknown": list(card.unknown),
    }


def render_json(card: Card, sheets: Mapping[str, str] | None = None) -> str:
    """Return `card_document` with sorted keys."""
    body = card_document(card, sheets)
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _kind(kind: CardKind) -> dict[str, Any]:
    return {
        "name": kind.name,
        "modality": kind.modality,
        "samples": kind.samples,
        "raw_objects": kind.raw_objects,
        "splits": dict(kind.splits),
        "hours": kind.hours,
        "seconds": dict(kind.seconds),
        "sound_s": kind.sound_s,
        "without_seconds": kind.without_seconds,
        "duration_s": kind.duration_s.to_json() if kind.duration_s else None,
        "durations": _in_order(kind.durations),
        "sizes": kind.sizes.to_json(),
        "short_sides": _in_order(kind.short_sides),
        "aspects": _in_order(kind.aspects),
        "labels": kind.labels.to_json(),
        "languages": kind.languages.to_json(),
    }


def _in_order(classes: Mapping[str, int]) -> list[dict[str, Any]]:
    # A list, because a JSON object would lose the order.
    return [{"name": name, "n": n} for name, n in classes.items()]


def _column(column: CardColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "numbers": column.numbers.to_json() if column.numbers else None,
        "counts": column.counts.to_json() if column.counts else None,
        "note": column.note,
    }


def _history(card: Card) -> dict[str, Any]:
    history = card.history
    return {
        "versions": history.versions,
        "publishes": history.publishes,
        "batches": history.batches,
        "accounted": history.accounted,
        "objects": dict(history.counts),
        "refused": [
            {"outcome": outcome, "stage": stage, "code": code, "n": n}
            for outcome, stage, code, n in history.refused
        ],
        "policies": [{"policy": text, "batches": n} for text, n in history.policies],
        "featurizers": [
            {"name": name, "version": version, "parameters": parameters, "batches": n}
            for name, version, parameters, n in history.featurizers
        ],
        "filters": [{"filter": text, "batches": n} for text, n in history.filters],
        "checks": [{name: getattr(check, name) for name in check.__slots__} for check in history.checks],
        "run": dict(history.run),
    }


def _example(example: Example) -> dict[str, Any]:
    shown = {name: getattr(example, name) for name in example.__slots__ if name != "picture"}
    digest = hashlib.sha256(example.picture).hexdigest() if example.picture else None
    return shown | {
        "facts": dict(example.facts),
        "picture_sha256": digest,
        "picture_nbytes": len(example.picture),
    }


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
    return sorted(licences, key=lambda name: ({"other": 1, "unknown": 2}.get(name, 0), name))


def _other_licences(card: Card) -> str:
    names = [name for name, _ in card.licences.counts if hub_licence(name) == "other"]
    if len(names) != 1 or card.licences.n_others:
        return "several-see-the-card"
    return _SLUG.sub("-", clean(names[0], 80).lower()).strip("-") or "see-the-card"


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
    return [f"{name}:", *(f"- {yaml_text(value)}" for value in values)] if values else []
