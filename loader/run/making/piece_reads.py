"""Read single pieces of long documents, if the root has checksums for them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...dataset.reading.verified_bucket_reads import PartsOfField
from ...dataset.shards.address import SampleAddress
from ...dataset.versions.pack import piece_checks
from ...dataset.versions.piece_checksums import PieceChecks
from ...errors import Corrupt
from ...modalities import Decoder, find_decoder
from ...order.sources.packing import PackedView
from ..recipe.document_pieces import SlotPieces
from ..recipe.rank_slots import LocatedSamples
from ..recipe.recipe import Recipe
from .fetch import Fetch
from .sequence_rows import Values


class SinglePiece(NamedTuple):
    """A piece that was read without the rest of its document."""

    address: SampleAddress
    values: Values | Corrupt


class PieceReads:
    """Reads single pieces of documents; thread-safe.

    A piece can be read singly if the root has its checksum, the tokens have the default decoder, and no fields lie
    beside them. Other documents are read whole.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoders: Sequence[Mapping[str, Decoder]],
        fetch: Fetch,
    ) -> None:
        packing = recipe.plan.pack
        assert packing is not None
        self._field = packing.field
        self._length = packing.length
        self._dtype = np.dtype(packing.dtype)
        self._fetch = fetch
        # Per source: checksums of its documents' pieces; None if its documents are read whole.
        self._checks: list[PieceChecks | None] = []
        stored = recipe.stored  # computed anew at each access
        for number, packed in enumerate(packed_views(recipe)):
            decoder = decoders[number].get(packing.field)
            has_default_decoder = decoder is find_decoder(packing.field)
            # Checksum tables record no SHA-256: with verify="sha256" documents are read whole.
            by_sha256 = stored[number].version.verify == "sha256"
            checks = None
            if has_default_decoder and not packing.side_fields and not by_sha256:
                checks = piece_checks(packed)
            self._checks.append(checks)

    def __call__(
        self,
        pieces: SlotPieces,
        documents: Sequence[LocatedSamples],
    ) -> dict[int, SinglePiece]:
        """Return piece number -> its tokens, or its error, for the pieces that are read singly.

        documents: the documents of all pieces; their rows are numbers of pieces.
        """
        # [pieces]: only split documents have checksums for their pieces.
        is_split = pieces.positions.tokens > self._length
        if not is_split.any() or all(checks is None for checks in self._checks):
            return {}
        addresses: dict[int, SampleAddress] = {}
        requests_by_source: dict[int, dict[int, PartsOfField]] = {}  # source -> piece number -> request
        for located in documents:
            for number in np.flatnonzero(is_split[located.rows]).tolist():
                piece = int(located.rows[number])
                address = located.places.address(number)
                request = self._request(pieces, piece, address)
                if request is not None:
                    source = int(pieces.documents.source[piece])
                    requests = requests_by_source.setdefault(source, {})
                    requests[piece] = request
                    addresses[piece] = address

        results: dict[int, SinglePiece] = {}
        for source, requests in requests_by_source.items():
            parts_by_piece = self._fetch.parts(source, list(requests.values()))
            for piece, parts in zip(requests, parts_by_piece, strict=True):
                values: Values | Corrupt
                if isinstance(parts, Corrupt):
                    values = parts
                else:
                    (tokens,) = parts  # one part was requested
                    values = (np.frombuffer(tokens, self._dtype),)
                results[piece] = SinglePiece(addresses[piece], values)
        return results

    def _request(
        self,
        pieces: SlotPieces,
        piece: int,
        address: SampleAddress,
    ) -> PartsOfField | None:
        """Return the read of one piece of a split document; None if the document is read whole."""
        positions = pieces.positions
        checks = self._checks[int(pieces.documents.source[piece])]
        if checks is None:
            return None
        # Long documents are cut every `length` tokens.
        number_in_document = int(positions.start[piece]) // self._length
        place = address.fields[self._field]
        part = checks.part(address.ordinal, number_in_document, place)
        nbytes = int(positions.length[piece]) * self._dtype.itemsize
        if part is None or part.nbytes != nbytes:  # no checksum, or one for other bytes
            return None
        return PartsOfField(
            address=address,
            field=self._field,
            runs=[[part]],
            crc_source="the checksums of its pieces",
        )


def packed_views(recipe: Recipe) -> list[PackedView]:
    views = [source.view for source in recipe.plan.sources.values()]
    return [view for view in views if isinstance(view, PackedView)]
