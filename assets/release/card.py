"""The dataset card in the lifecycle: facts that a batch writes down for it, and its part on Dagster's page.

The card itself is made in `penstock/card`, from the version and its records alone.
"""

import base64
import io
from collections.abc import Mapping
from typing import Any

import dagster as dg

import loader
from loader.dataset.names import card_folder
from loader.errors import ObjectNotFound, PenstockError
from penstock.card.build import build_card
from penstock.card.rendering.sections import table
from penstock.card.stored import read_card, save_card
from penstock.text import markdown_text

from ..pages import plots

MAX_SHEET_BYTES = 40_000
"""Most bytes of a picture in Dagster's event log, before base64 makes four bytes of three."""
_WIDTHS_PX = (640, 480, 360, 240)

Metadata = dict[str, dg.MetadataValue[Any]]


def card_metadata(root: loader.Root, version: loader.Version) -> Metadata:
    """Make the version's card where there is none, and show it: numbers, distributions, examples, its path.

    The version is published by now and stays so: an error that keeps a card from being made is shown in its place.
    """
    try:
        document = stored_card(root, version)
        sheets = _sheets(root, version, document)
    except PenstockError as error:
        said = f"{type(error).__name__}: {error}; repair it, then: penstock card {version.name} --save"
        return {"card": dg.MetadataValue.text(f"the dataset card could not be made: {said}"[:1000])}
    folder = card_folder(version.dataset, version.number, version.id)
    shown: Metadata = {
        "card": dg.MetadataValue.md(card_markdown(document)),
        "card_html": dg.MetadataValue.path(f"{root.url}/{folder}/card.html"),
    }
    picture = plots.counts(_distributions(document))
    if picture:
        shown["distributions"] = dg.MetadataValue.md(picture)
    return shown | {
        f"examples {kind}": dg.MetadataValue.md(f"![{kind} examples](data:image/jpeg;base64,{body})")
        for kind, body in sheets.items()
    }


def stored_card(root: loader.Root, version: loader.Version) -> dict[str, Any]:
    """Return the document of the version's card, made and saved when there is none.

    Raises: StoreError; Corrupt; MissingDependency.
    """
    try:
        return read_card(root.store, version)
    except ObjectNotFound:
        return save_card(root.store, build_card(root, version)).document


def card_markdown(document: Mapping[str, Any]) -> str:
    """Return the few lines and the table on the version's page."""
    splits = list(document["splits"])
    rows = []
    for kind in document["kinds"]:
        hours = "" if kind["hours"] is None else f"{kind['hours']:.2f}"
        counts = [f"{kind['splits'].get(split, 0):,}" for split in splits]
        rows.append([kind["name"], f"{kind['samples']:,}", *counts, hours])
    blocks = [f"**{markdown_text(text)}**" for text in document["warnings"]]
    blocks.append(table(["kind", "samples", *splits, "hours"], rows, right=1))
    if left_out := document["excluded_samples"]:
        blocks.append(f"{left_out:,} samples are left out.")
    return "\n\n".join(blocks)


def _distributions(document: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the counts for a plot of bars: kinds, splits, licences."""
    licences = {item["name"]: item["n"] for item in document["licences"]["counts"]}
    if document["licences"]["unknown"]:
        licences["unknown"] = document["licences"]["unknown"]
    return {
        "kind": {kind["name"]: kind["samples"] for kind in document["kinds"]},
        "split": dict(document["splits"]),
        "licence": licences,
    }


def _sheets(root: loader.Root, version: loader.Version, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind as a word -> its sheet of examples, base64, of at most three kinds."""
    folder = card_folder(version.dataset, version.number, version.id)
    found = {}
    for name in sorted(document["pictures"].values())[:3]:
        small = _small(root.store.get(f"{folder}/{name}").data)
        if small:
            kind = name.removeprefix("examples-").removesuffix(".jpg")
            found[kind] = base64.b64encode(small).decode()
    return found


def _small(sheet: bytes) -> bytes:
    """Return the sheet as a JPEG of at most MAX_SHEET_BYTES, empty where it cannot be."""
    from PIL import Image

    with Image.open(io.BytesIO(sheet), formats=("JPEG",)) as picture:
        picture.load()
        for width_px in _WIDTHS_PX:
            size = (width_px, max(1, round(picture.height * width_px / picture.width)))
            sink = io.BytesIO()
            picture.resize(size, Image.Resampling.LANCZOS).save(sink, "JPEG", quality=75, optimize=True)
            if sink.tell() <= MAX_SHEET_BYTES:
                return sink.getvalue()
    return b""
