"""Where the samples of slots lie."""

import struct

from ..dataset.address import SampleAddress
from ..dataset.read import Map
from ..dataset.shard import crc32c
from ..dataset.view import View
from ..order.keys import I64
from ..order.packed_view import PackedView, sequence_key
from ..order.slots import Slots
from .recipe import stored_view


def addresses_of(views: list[View], slots: Slots, wanted: I64, run: Map) -> dict[int, SampleAddress]:
    """slot -> address of the sample that it holds, in the order of `wanted` (slot numbers). `run` may be a thread
    pool's map. Raises: what `Version.address` does."""
    out: dict[int, SampleAddress] = {}
    for index, view in enumerate(views):
        mine = wanted[slots.source[wanted] == index]
        if len(mine):
            found = view.version.address(slots.ordinal[mine], view.fields, run)
            out.update(zip(mine.tolist(), found, strict=True))
    return {slot: out[slot] for slot in wanted.tolist()}


def sequence_address(view: PackedView, number: int) -> SampleAddress:
    """What a packed sequence is called; its bytes lie where its documents do."""
    documents = stored_view(view)
    assert documents is not None
    version = documents.version
    return SampleAddress(
        key=sequence_key(number),
        version=version.name,
        version_id=version.id,
        part=f"pack-{view.table_sha256[:12]}",
        row=number,
        ordinal=number,
        fields={},
    )


def sample_crc(address: SampleAddress) -> int:
    """CRC-32C over (field name, CRC-32C of its bytes) of the fields read, by name; every one was verified."""
    parts = [
        name.encode() + struct.pack("<xI", place.crc32c) for name, place in sorted(address.fields.items())
    ]
    return crc32c(b"".join(parts))
