"""Build the card of a version; store it in the root, where it is never replaced, or in a local folder.

cards/<dataset>/<number>-<version id>/card.json  card.md  card.html  examples-<kind>.jpg
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loader import Root, Version
from loader.dataset.log.entries import DAMAGED
from loader.dataset.names import card_folder
from loader.dataset.shards.bitmap import unpack
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.errors import AlreadyExists, Corrupt, FormatTooNew, InvalidRuntime
from loader.json_text import parse_json_object
from loader.storage import Store

from ..units import minute, second
from . import classes
from .classes import part_fields
from .examples import examples
from .history import history
from .pictures import sheet
from .render import render_html, render_markdown
from .scan import SampleScan, scan
from .tally import Counts, KindScan, NameTally, NumberSummary, rank_counts
from .value import FORMAT, Card, CardColumn, CardKind, Group, History, render_json

EXAMPLES = 6
MAX_EXAMPLES = 24
"""Examples per kind: default and limit."""
MAX_REASONS = 40
"""Most reasons of exclusions that a card lists."""
MAX_SIZES = 12
"""Most sizes of images that a card lists for a kind."""
MAX_VALUES = 12
"""Most values that a card lists for a column of names."""

# A filter's reason (assets/spec.py, Filter.reason).
_FILTERED = re.compile(
    r"^(?P<column>\w+) = .* is (?P<bound>below|above|not one of) (?P<limit>.*)$", re.DOTALL
)
# A featurizer's reason: "<name>: <code>: <reason>".
_REFUSED = re.compile(r"^(?P<featurizer>[\w.:-]+): (?P<code>\w+): ")

# A near-duplicate's reason (assets/dedup/settle.py, Copy.reason).
_COPY = re.compile(
    r"^(?P<code>near_duplicate) of .+ \((?P<by>distance|cosine) [0-9.-]+(?P<mirrored> mirrored)?, ", re.DOTALL
)


def build_card(root: Root, version: Version, *, n_examples: int = EXAMPLES) -> Card:
    """Return an open version's card. It depends only on the version, its ancestors and their records.

    Reads the samples table once, the stage records, and the media of `n_examples` samples per kind.

    Raises: Corrupt; StoreError; MissingDependency (Pillow, av); InvalidRuntime if `n_examples` is out of range.
    """
    if not 0 <= n_examples <= MAX_EXAMPLES:
        message = f"{n_examples} examples of each kind; accepted: 0 to {MAX_EXAMPLES}"
        raise InvalidRuntime(message, what="examples", given=n_examples, accepted=f"0 to {MAX_EXAMPLES}")
    scanned = scan(version, n_examples=n_examples)
    past = history(root, version)
    n = len(version)
    manifest = version.manifest
    kinds = tuple(_kind(name, kind, scanned) for name, kind in scanned.kinds.items())
    licences = scanned.licences.result(n)
    return Card(
        dataset=version.dataset,
        number=version.number,
        id=version.id,
        parent=manifest["parent"],
        created=f"{second(manifest['created_us'])} UTC",
        samples=n,
        excluded_samples=manifest["n_rows"] - n,
        excluded=exclusion_counts(version),
        kinds=kinds,
        groups=tuple(_groups(version)),
        columns=tuple(_columns(version, scanned)),
        licences=licences,
        sources=scanned.raw.sources(n),
        folders=scanned.raw.folders(n),
        subjects=scanned.raw.subjects,
        raw_objects=scanned.raw.distinct(),
        history=past,
        examples=examples(version, scanned) if n_examples else (),
        warnings=tuple(_warnings(n, licences, past)),
        unknown=tuple(_unknown(manifest["columns"], kinds, past)),
    )


def _kind(name: str, scan: KindScan, scanned: SampleScan) -> CardKind:
    n = scan.samples
    splits = {scanned.splits[i]: int(count) for i, count in enumerate(scan.splits) if count}
    seconds = {scanned.splits[i]: float(scan.seconds[i]) for i in np.flatnonzero(scan.seconds).tolist()}
    duration = scan.duration_s.result(n)
    return CardKind(
        name=name,
        modality=scan.modality,
        samples=n,
        splits=dict(sorted(splits.items(), key=lambda item: (-item[1], item[0]))),
        raw_objects=scan.raw_objects,
        seconds=dict(sorted(seconds.items())),
        sound_s=scan.sound_s,
        without_seconds=n - scan.duration_s.n,
        duration_s=duration,
        durations=_classes(classes.DURATIONS, scan.durations),
        sizes=_sizes(scan.sizes, n),
        short_sides=_classes(classes.SHORT_SIDES, scan.short_sides),
        aspects=_classes(classes.ASPECTS, scan.aspects),
        labels=scan.labels.result(n),
        languages=scan.languages.result(n),
    )


def _classes(names: tuple[str, ...], counts: np.ndarray[Any, Any]) -> dict[str, int]:
    """Return class -> samples, from the first class with samples to the last, empty ones between them included."""
    with_samples = np.flatnonzero(counts)
    if not len(with_samples):
        return {}
    first = int(with_samples[0])
    last = int(with_samples[-1])
    return {names[i]: int(counts[i]) for i in range(first, last + 1)}


def _sizes(tally: NameTally, n: int) -> Counts:
    """Return "width x height" -> samples. tally: of `KindScan.sizes`. n: samples of the kind."""
    if tally.overflowed:
        return tally.result(n)
    named = {}
    for code, count in tally.counted().items():
        width_px = int(code) >> 32
        height_px = int(code) & 0xFFFFFFFF
        named[f"{width_px} x {height_px}"] = count
    return rank_counts(named, n - tally.n, MAX_SIZES)


def exclusion_counts(version: Version) -> Counts:
    """Return reason -> excluded samples. Reads the exclusion tables. Raises: Corrupt."""
    counts = Counter[str]()
    files = [TableFile.from_json(file) for file in version.manifest["exclusions"]]
    for table in get_tables(version.store, files):
        for row in table.to_pylist():
            reason = reason_class(row["reason"])
            is_excluded = unpack(row["bitmap"], row["n_rows"])  # bool [rows of a part]
            counts[reason] += int(is_excluded.sum())
    return rank_counts(counts, listed=MAX_REASONS)


def reason_class(reason: str) -> str:
    """Drop the sample's value: 'sharpness = 3.1 is below 12' -> 'sharpness below 12'."""
    if match := _FILTERED.match(reason):
        return f"{match['column']} {match['bound']} {match['limit']}"
    if match := _REFUSED.match(reason):
        return f"{match['featurizer']}: {match['code']}"
    if match := _COPY.match(reason):
        by = "perceptual hash"
        if match["by"] == "cosine":
            by = "embedding"
        mirrored = ""
        if match["mirrored"]:
            mirrored = f",{match['mirrored']}"
        return f"{match['code']} by {by}{mirrored}"
    return reason


def _groups(version: Version) -> Iterator[Group]:
    for name, body in sorted(version.manifest["groups"].items()):
        part_numbers = np.flatnonzero(version.parts.has_group(name))
        # Fewer than 2,000 parts, evenly spread. A modality that none of them has is missing.
        every = max(1, len(part_numbers) // 1000)
        layouts = {part_fields(version, part) for part in part_numbers[::every].tolist()}
        modalities = {classes.fields_modality(fields) for fields in layouts}
        yield Group(
            name=name,
            nbytes=body["nbytes"],
            rows=body["n_rows"],
            parts=body["n_parts"],
            fields=dict(sorted(body["field_nbytes"].items())),
            modalities=tuple(sorted(modalities)),
        )


def _columns(version: Version, scanned: SampleScan) -> Iterator[CardColumn]:
    n = len(version)
    for name, body in sorted(version.manifest["columns"].items()):
        if body["group"] == "keys" or body["type"] == "null":
            continue
        column = scanned.columns.get(name)
        if isinstance(column, NumberSummary):
            numbers = column.result(n)
            note = ""
            if numbers is None:
                note = "all unknown"
            yield CardColumn(name=name, type=body["type"], numbers=numbers, note=note)
        elif isinstance(column, NameTally):
            counts = column.result(n, MAX_VALUES)
            yield CardColumn(name=name, type=body["type"], counts=counts)
        elif name in scanned.spans:
            first, last = scanned.spans[name]
            yield CardColumn(name=name, type=body["type"], note=f"{minute(first)} to {minute(last)}")
        else:
            yield CardColumn(name=name, type=body["type"], note="")


def _warnings(n: int, licences: Counts, past: History) -> Iterator[str]:
    if licences.unknown:
        what = "any of the samples"
        if licences.unknown != n:
            what = f"{licences.unknown:,} of {n:,} samples"
        yield (
            f"The licence of {what} is unknown. You may not be allowed to use them or pass them on: find out, or "
            "leave them out."
        )
    if not licences.complete:
        yield "There are too many different licences to list them: the column may hold something else."
    limited = {
        word: sum(count for name, count in licences.counts if re.search(rf"\b{word}\b", name, re.IGNORECASE))
        for word in ("NC", "ND")
    }
    if limited["NC"]:
        yield f"The licence of {limited['NC']:,} samples allows no commercial use (NC)."
    if limited["ND"]:
        yield f"The licence of {limited['ND']:,} samples allows no derivatives (ND)."
    for check in past.checks:
        if check.failed:
            yield f"The check {check.name} did not pass for {check.failed} of {check.batches + check.failed} batches."


def _unknown(columns: Mapping[str, Any], kinds: tuple[CardKind, ...], past: History) -> Iterator[str]:
    def has(name: str) -> bool:
        return bool(columns.get(name, {}).get("type", "null") != "null")

    if not has("licence"):
        yield "No licence is recorded: there is no column `licence`."
    if not has("split"):
        yield "The samples are in no splits."
    if not any(map(has, ("raw_sha256", "raw_uri", "raw_key"))):
        yield "Where the samples came from is not recorded: they name no raw objects."
    for kind in kinds:
        if kind.modality in ("video", "audio") and kind.without_seconds:
            which = "any"
            if kind.without_seconds != kind.samples:
                which = f"{kind.without_seconds:,}"
            yield f"The length of {which} of the {kind.samples:,} {kind.name} samples is not recorded (`duration_s`)."
        if kind.modality in ("image", "video") and not kind.short_sides:
            yield f"The size of the {kind.name} samples is not recorded (`width_px`, `height_px`)."
        if kind.modality == "text" and not kind.languages.known:
            yield f"The language of the {kind.name} samples is not recorded (`language`)."
    if past.publishes < past.versions:
        yield f"How {past.versions - past.publishes} of {past.versions} versions were made is no longer known."
    if not past.batches:
        yield "The version was not made by the pipeline: what was checked, filtered and refused before is not recorded."
    elif past.accounted < past.batches:
        missing = past.batches - past.accounted
        yield f"Which objects were refused, and by which policy they were cut, is not recorded for {missing} batches."


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
    sheets = {}
    pictures = {}
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

    Raises: StoreError; Corrupt if the stored card.json is not a card.
    """
    folder = card_folder(card.dataset, card.number, card.id)
    written = []
    kept = []
    for name, data in card_files(card).items():
        try:
            store.put_if_absent(f"{folder}/{name}", data)
            written.append(name)
        except AlreadyExists:  # another release may have written it; a published card is never replaced
            kept.append(name)
    stored = data  # of card.json, the last file
    if "card.json" in kept:
        stored = store.get(f"{folder}/card.json").data
    document = _parse_card(stored, f"{store.url}/{folder}/card.json")
    return SavedCard(folder=folder, written=tuple(written), kept=tuple(kept), document=document)


def read_card(store: Store, version: Version) -> dict[str, Any]:
    """Return a version's card.json. Raises: ObjectNotFound; Corrupt; FormatTooNew."""
    folder = card_folder(version.dataset, version.number, version.id)
    path = f"{folder}/card.json"
    url = f"{store.url}/{path}"
    document = _parse_card(store.get(path).data, url)
    format_number = document["card"]
    version_id = document["version"]
    if format_number > FORMAT:
        message = f"{url} has format {format_number}; this penstock reads up to {FORMAT}"
        raise FormatTooNew(message, what="format", where=url, given=format_number, accepted=FORMAT)
    if version_id != version.id:
        message = f"{url} is the card of {version_id}; delete it, penstock makes it again"
        raise Corrupt(message, where=url, given=version_id, accepted=version.name)
    return document


def _parse_card(data: bytes, url: str) -> dict[str, Any]:
    """Return a card's JSON object. Raises: Corrupt if it lacks the format number or the version's id."""
    try:
        document = parse_json_object(data)
        # Read for the errors that they raise.
        int(document["card"])
        document["version"]
    except DAMAGED as error:
        message = f"{url} is not a card ({error}); delete it, penstock makes it again"
        raise Corrupt(message, where=url, accepted="a card") from error
    return document


def write_card(folder: Path, card: Card) -> list[Path]:
    """Write into a local folder, replacing older files. Raises: InvalidRuntime."""
    return [_write_card(folder / name, data) for name, data in card_files(card).items()]


def write_html(path: Path, card: Card) -> Path:
    """Write one HTML file. Raises: InvalidRuntime."""
    return _write_card(path, render_html(card).encode())


def _write_card(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise InvalidRuntime(
            f"{path} cannot be written: {error.strerror or error}; pass another path",
            what="path",
            where=path,
            given=error.strerror or str(error),
        ) from error
    return path


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:40] or "samples"
