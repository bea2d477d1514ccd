"""Trace a step back to its samples: version, part, bytes, checksum, raw object, Dagster run."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..dataset.shards.address import FieldAddress, SampleAddress, crc_text
from ..dataset.tables.columns import SOURCE_COLUMNS
from ..dataset.tables.foreign_objects import is_foreign
from ..dataset.versions.sample_rows import sample_rows
from ..dataset.versions.version import Version, View
from ..errors import InvalidRuntime
from ..order.plan import Plan
from ..order.random.keyed_permutation import I64
from ..order.slots import Slots, rank_slice
from ..order.sources.items_view import ItemsView, escape_text, unsupported
from ..order.sources.packing import PackedView
from ..order.sources.window_view import view_ordinals
from ..run.recipe.document_pieces import find_pieces, sequence_address
from ..run.recipe.recipe import stored_view
from ..run.recipe.world import World
from ..storage.external_shards import PlacedStore
from ..storage.threads import DaemonPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPiece:
    """One piece of a document in a packed sequence."""

    segment_id: int
    """The piece's number in `segment_ids`, from 1."""
    start: int
    """Offset of the piece in the document, in tokens."""
    stop: int
    """Offset of the piece's end in the document, exclusive."""
    at: int
    """Offset of the piece in the sequence, in tokens."""
    masked: bool
    """True if the document is quarantined at the step; its tokens are padding."""
    address: SampleAddress
    """Address of the document's bytes."""
    provenance: dict[str, str]
    """The document's provenance columns, as in `Explanation.provenance`."""

    def to_json(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("segment_id", "start", "stop", "at", "masked")}
        return {**own, **self.address.to_json(), "provenance": self.provenance}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDataset:
    """The dataset of a slot's source, as far as its plan describes it."""

    name: str
    """Name of the data."""
    length: int
    """Number of items."""
    fingerprint: str
    """Hash of the content; "" is unknown content."""
    is_open: bool
    """True if the plan was opened with the dataset, whose names of items are then the keys."""

    def lines(self, address: SampleAddress) -> list[str]:
        """Return lines about an item: its name, the dataset, and what is not known. address: the item's."""
        item = f"{address.key!r} = ordinal {address.ordinal} of {self.length}"
        if not self.is_open:
            item += " (by its ordinal: names of items are the dataset's, which the plan does not hold)"
        fingerprint = escape_text(self.fingerprint)
        if not self.fingerprint:
            fingerprint = "none: changed content of the same length goes unnoticed"
        return [
            f"  item        {item}",
            f"  dataset     '{escape_text(self.name)}'",
            f"  fingerprint {fingerprint}",
            "  raw object and Dagster run are not known: penstock stores no bytes of a dataset",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One slot of one step, traced back to its raw object."""

    step: int
    """Global step."""
    slot: int
    """Slot number in the global batch's canonical order."""
    source: str
    """Source name in the plan."""
    epoch: int
    """Epoch of the source."""
    position: int
    """Position in the source's stream, from 0."""
    attempt: int
    """0, or the number of the substitute for a quarantined sample."""
    root: str
    """Root URL."""
    address: SampleAddress
    """Address of the sample's bytes."""
    provenance: dict[str, str]
    """raw_uri, raw_sha256, unit_id, run_id, asset_key ..., if the writer recorded them."""
    pieces: tuple[ExplainedPiece, ...] = ()
    """Pieces of documents in a packed sequence; empty for other samples."""
    dataset: ExplainedDataset | None = None
    """The dataset that makes the sample; None for stored samples."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON. `pieces` and `dataset` are absent for samples that have none."""
        body = {
            "step": self.step,
            "slot": self.slot,
            "source": self.source,
            "epoch": self.epoch,
            "position": self.position,
            "attempt": self.attempt,
            "root": self.root,
            **self.address.to_json(),
            "provenance": self.provenance,
        }
        if self.pieces:
            body["pieces"] = [piece.to_json() for piece in self.pieces]
        if self.dataset is not None:
            body["dataset"] = asdict(self.dataset)
        return body

    def __str__(self) -> str:
        instead = ""
        if self.attempt:
            instead = f", substitute {self.attempt} for a quarantined or removed sample"
        slot = (
            f"step {self.step} slot {self.slot}: source {self.source!r}, epoch {self.epoch}, position {self.position}"
            + instead
        )
        if self.dataset is not None:
            return "\n".join([slot, *self.dataset.lines(self.address)])
        lines = [
            slot,
            f"  sample      {self.address.key!r} = {self.address.version} ordinal {self.address.ordinal}",
            f"  version     {self.address.version_id}",
            f"  part        {self.address.part} row {self.address.row}",
        ]
        for name, at in self.address.fields.items():
            lines.append(f"  {name:<11} {_location(self.root, at)}")
        lines.extend(f"  {name:<11} {value}" for name, value in self.provenance.items())
        for piece in self.pieces:
            bad = ""
            if piece.masked:
                bad = ", masked: quarantined"
            lines.append(
                f"  segment {piece.segment_id:<3} tokens [{piece.start}:{piece.stop}] of {piece.address.key!r} at "
                f"[{piece.at}:{piece.at + piece.stop - piece.start}]{bad}"
            )
            lines.extend(f"              {_location(self.root, at)}" for at in piece.address.fields.values())
        return "\n".join(lines)


def _location(root: str, at: FieldAddress) -> str:
    return f"{root}/{at.path} bytes [{at.offset}:{at.offset + at.nbytes}] crc32c {crc_text(at.crc32c) or 'not known'}"


def explain(
    plan: Plan, step: int, rank: int | None = None, world_size: int | None = None, slot: int | None = None
) -> list[Explanation]:
    """Return every slot of a step, or of one rank's part, or one slot, without padding. Reads no media.

    slot: number in the global batch, or in the rank's part if rank and world_size are passed.

    Costs one index row group and at most one keys row group per sample. Raises: InvalidRuntime if the slot is out of
    range.
    """
    slots = plan.slots(step)
    # int64 [slots asked for]: rows of `slots`.
    rows = np.arange(len(slots))
    if rank is not None or world_size is not None:
        world = World.of(rank, world_size)
        rows = rows[rank_slice(len(slots), world.rank, world.world_size)]
    if slot is not None:
        if not 0 <= slot < len(rows):
            raise InvalidRuntime(
                f"slot = {slot}; this batch has slots 0 to {len(rows) - 1}",
                what="slot",
                given=slot,
                accepted=f"0 to {len(rows) - 1}",
            )
        rows = rows[slot : slot + 1]
    return explain_slots(plan, step, slots, rows)


def explain_slots(
    plan: Plan, step: int, slots: Slots, asked_rows: I64, first_slot: int = 0
) -> list[Explanation]:
    """Return explanations of the requested slots, as `explain` does.

    slots: slots of the step, from `first_slot` on; `Replay.slots` includes recorded substitutions. asked_rows: int64,
    rows of `slots` to explain.
    """
    # Padding has no sample.
    asked_rows = asked_rows[slots.valid[asked_rows]]
    out: dict[int, Explanation] = {}
    for index, (name, source) in enumerate(plan.sources.items()):
        # int64 [slots of this source].
        of_source = asked_rows[slots.source[asked_rows] == index]
        if not len(of_source):
            continue
        if isinstance(source.view, ItemsView):
            items = _explain_items(plan, step, slots, of_source, first_slot, source.view)
            out.update(zip(of_source.tolist(), items, strict=True))
            continue
        view = stored_view(source.view)
        if view is None:
            raise InvalidRuntime(
                unsupported(name, source.view, "has no stored bytes to explain"),
                what=f"source {name!r}",
                given=type(source.view).__name__,
                accepted="views with stored bytes",
            )
        version = view.version
        pieces: dict[int, list[ExplainedPiece]] = {}
        if isinstance(source.view, PackedView):
            # A packed sequence has no row of its own: its pieces have the provenance.
            addresses = [sequence_address(source.view, one) for one in slots.ordinal[of_source].tolist()]
            rows: list[dict[str, str]] = [{} for _ in addresses]
            pieces = _pieces(plan, step, slots, of_source, view)
        else:
            addresses = _addresses(view, view_ordinals(source.view, slots.ordinal[of_source]))
            rows = provenance(version, addresses)
        for row, address, row_values in zip(of_source.tolist(), addresses, rows, strict=True):
            out[row] = Explanation(
                step=step,
                slot=first_slot + row,
                source=name,
                epoch=int(slots.epoch[row]),
                position=int(slots.position[row]),
                attempt=int(slots.attempt[row]),
                root=version.store.url,
                address=address,
                provenance=row_values,
                pieces=tuple(pieces.get(row, ())),
            )
    # In the order of the slots, not by source.
    return [out[row] for row in asked_rows.tolist()]


def _explain_items(
    plan: Plan,
    step: int,
    slots: Slots,
    rows: I64,
    first_slot: int,
    view: ItemsView,
) -> list[Explanation]:
    """Return explanations of slots whose source is a dataset. rows: int64, rows of `slots`."""
    from ..run.items.item_samples import item_address  # only for datasets

    dataset = ExplainedDataset(
        name=view.name,
        length=len(view),
        fingerprint=view.fingerprint,
        is_open=view.source is not None,
    )
    explanations = []
    for row in rows.tolist():
        source = int(slots.source[row])
        ordinal = int(slots.ordinal[row])
        explanation = Explanation(
            step=step,
            slot=first_slot + row,
            source=plan.source_names[source],
            epoch=int(slots.epoch[row]),
            position=int(slots.position[row]),
            attempt=int(slots.attempt[row]),
            root="",
            address=item_address(view, ordinal),
            provenance={},
            dataset=dataset,
        )
        explanations.append(explanation)
    return explanations


def _addresses(view: View, ordinals: I64) -> list[SampleAddress]:
    with DaemonPool(16, "penstock-index") as pool:
        return view.version.address(ordinals, view.fields, pool.map)


def _pieces(plan: Plan, step: int, slots: Slots, rows: I64, view: View) -> dict[int, list[ExplainedPiece]]:
    """Return row of `slots` -> its pieces in order. rows: int64, rows of `slots`. view: the documents."""
    pieces = find_pieces(plan, step, slots, rows)
    addresses = _addresses(view, pieces.positions.document)
    out: dict[int, list[ExplainedPiece]] = {}
    for i, (address, row) in enumerate(zip(addresses, provenance(view.version, addresses), strict=True)):
        start = int(pieces.positions.start[i])
        out.setdefault(int(pieces.slot[i]), []).append(
            ExplainedPiece(
                segment_id=int(pieces.positions.number_in_sequence[i]) + 1,
                start=start,
                stop=start + int(pieces.positions.length[i]),
                at=int(pieces.positions.offset_in_sequence[i]),
                masked=bool(pieces.is_masked[i]),
                address=address,
                provenance=row,
            )
        )
    return out


def _registration(placed: PlacedStore, address: SampleAddress) -> dict[str, str]:
    """Return `raw_uri` of a sample whose bytes are in a registered object, which has no such column; else {}."""
    for at in address.fields.values():
        if is_foreign(at.path):
            return {"raw_uri": placed.place(at.path, at.offset)[0]}
    return {}


def provenance(version: Version, addresses: list[SampleAddress]) -> list[dict[str, str]]:
    """Return the samples' provenance columns. Reads few row groups.

    Raises: Corrupt if a keys table is damaged or does not follow the order of the parts.
    """
    out: list[dict[str, str]] = [{} for _ in addresses]
    for i, row in sample_rows(version, addresses, "keys", SOURCE_COLUMNS):
        out[i] = {name: value for name, value in row.items() if value is not None}
        if version.placed is not None and "raw_uri" not in out[i]:
            out[i] |= _registration(version.placed, addresses[i])
    return out
