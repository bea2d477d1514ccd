"""Store a card in the root, where it is never replaced, or in a local folder.

cards/<dataset>/<number>-<version id>/card.json  card.md  card.html  examples-<kind>.jpg
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader import Version
from loader.dataset.log.entries import DAMAGED
from loader.dataset.names import card_folder
from loader.errors import AlreadyExists, Corrupt, FormatTooNew, InvalidRuntime
from loader.json_text import parse_json_object
from loader.storage import Store

from .as_json import render_json
from .pictures import sheet
from .render import render_html, render_markdown
from .value import FORMAT, Card

ACROSS = {"image": 6, "video": 3, "audio": 3}
"""Modality -> a contact sheet's images per row."""
SHEET_PX = 960


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCard:
    """A card in a root."""

    folder: str
    """Its key."""
    written: tuple[str, ...]
    """Files now stored with this content."""
    kept: tuple[str, ...]
    """Files stored before with other content."""
    document: dict[str, Any]
    """The stored card.json."""


def card_files(card: Card) -> dict[str, bytes]:
    """Return name -> bytes; card.json is last, so its presence means that all files exist."""
    sheets, pictures = {}, {}
    for kind in card.kinds:
        shown = [
            example.picture for example in card.examples if example.kind == kind.name and example.picture
        ]
        if shown:
            name = f"examples-{_plain(kind.name)}.jpg"
            if name not in pictures:
                sheets[kind.name] = name
                pictures[name] = sheet(shown, across=ACROSS.get(kind.modality, 3), width_px=SHEET_PX)
    texts = {
        "card.md": render_markdown(card, sheets),
        "card.html": render_html(card),
        "card.json": render_json(card, sheets),
    }
    return pictures | {name: text.encode() for name, text in texts.items()}


def save_card(store: Store, card: Card) -> SavedCard:
    """Write the files that the root lacks.

    Raises: StoreError; Corrupt if the stored card.json is no card.
    """
    folder = card_folder(card.dataset, card.number, card.id)
    written, kept = [], []
    for name, data in card_files(card).items():
        try:
            store.put_if_absent(f"{folder}/{name}", data)
            written.append(name)
        except AlreadyExists:  # another release may have written it; a published card is never replaced
            kept.append(name)
    there = store.get(f"{folder}/card.json").data if "card.json" in kept else data
    document = _parsed(there, f"{store.url}/{folder}/card.json")
    return SavedCard(folder=folder, written=tuple(written), kept=tuple(kept), document=document)


def read_card(store: Store, version: Version) -> dict[str, Any]:
    """Return a version's card.json. Raises: ObjectNotFound; Corrupt; FormatTooNew."""
    path = f"{card_folder(version.dataset, version.number, version.id)}/card.json"
    document = _parsed(store.get(path).data, f"{store.url}/{path}")
    number, of = document["card"], document["version"]
    if number > FORMAT:
        raise FormatTooNew(f"{store.url}/{path} has format {number}; this penstock reads up to {FORMAT}")
    if of != version.id:
        raise Corrupt(f"{store.url}/{path} is the card of {of}; delete it, penstock makes it again")
    return document


def _parsed(data: bytes, place: str) -> dict[str, Any]:
    try:
        document = parse_json_object(data)
        int(document["card"]), document["version"]
    except DAMAGED as error:
        raise Corrupt(f"{place} is not a card ({error}); delete it, penstock makes it again") from error
    return document


def write_card(folder: Path, card: Card) -> list[Path]:
    """Write into a local folder, replacing older files. Raises: InvalidRuntime."""
    return [_written(folder / name, data) for name, data in card_files(card).items()]


def write_html(path: Path, card: Card) -> Path:
    """Write one HTML file. Raises: InvalidRuntime."""
    return _written(path, render_html(card).encode())


def _written(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise InvalidRuntime(
            f"{path} cannot be written: {error.strerror or error}; pass another path"
        ) from error
    return path


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:40] or "samples"
