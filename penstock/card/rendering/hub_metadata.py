"""The metadata on top of a Markdown card, in the form that the Hugging Face Hub reads.

Field names and values: huggingface/hub-docs, datasetcard.md and docs/hub/repositories-licenses.md.
"""

import re
from collections.abc import Iterator

from ...text import clean, yaml_text
from ..counting.classes import MODALITIES, hub_language, hub_licence, size_category
from ..value import Card

_SLUG = re.compile(r"[^a-z0-9.]+")


def front_matter(card: Card) -> str:
    """Return YAML between two lines of '---'.

    Its entries: pretty_name, license, license_name, language, size_categories, task_categories, tags.
    """
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
    """Return the Hub's identifiers, 'other' and 'unknown' last."""
    licences = {hub_licence(name) for name, _ in card.licences.counts}
    if card.licences.n_others or not card.licences.complete:
        licences.add("other")
    if card.licences.unknown:
        licences.add("unknown")
    return sorted(licences, key=lambda name: ({"other": 1, "unknown": 2}.get(name, 0), name))


def _other_licences(card: Card) -> str:
    """Return a name for licences without an identifier of the Hub."""
    names = [name for name, _ in card.licences.counts if hub_licence(name) == "other"]
    if len(names) != 1 or card.licences.n_others:
        return "several-see-the-card"
    return _SLUG.sub("-", clean(names[0], 80).lower()).strip("-") or "see-the-card"


def languages(card: Card) -> set[str]:
    """Return the ISO 639 codes among the languages that the samples name."""
    named = {name for kind in card.kinds for name, _ in kind.languages.counts}
    return {code for code in map(hub_language, named) if code}


def tasks(card: Card) -> Iterator[str]:
    """Yield tasks that the fields themselves make possible: images with a class, images with a caption, texts."""
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
    """Return modalities and formats."""
    modalities = sorted({kind.modality for kind in card.kinds} & set(MODALITIES))
    return [*modalities, "webdataset", "penstock"]


def _list(name: str, values: list[str]) -> list[str]:
    return [f"{name}:", *(f"- {yaml_text(value)}" for value in values)] if values else []
