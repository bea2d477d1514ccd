"""Pieces of long documents, read alone where the root has their checksums."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..dataset.address import SampleAddress
from ..dataset.pack import checks_of
from ..dataset.read import PartsOfField
from ..errors import Corrupt
from ..modalities import Decoder, decoder_for
from ..order.packed_view import PackedView
from .fetch import Fetch
from .pieces import SlotPieces, Values
from .recipe import Recipe
from .step_metrics import StepMetrics


class PieceReads:
    """Reads what can be read by the piece; thread-safe. Nothing can where the caller decodes the field himself, and
    where other fields lie beside it."""

    def __init__(self, recipe: Recipe, decoders: Sequence[Mapping[str, Decoder]], fetch: Fetch) -> None:
        packing = recipe.plan.pack
        assert packing is not None
        self._field, self._length = packing.field, packing.length
        self._dtype, self._fetch = np.dtype(packing.dtype), fetch
        views = [one.view for one in recipe.plan.sources.values() if isinstance(one.view, PackedView)]
        ours = [
            one.get(packing.field) is decoder_for(packing.field) and not packing.beside for one in decoders
        ]
        # Nobody wrote down the SHA-256 of a table of checksums: where that of samples counts, documents are read whole.
        proved = [one.version.verify == "sha256" for one in recipe.views]
        self._checks = [
            checks_of(view) if own and not by_sha256 else None
            for view, own, by_sha256 in zip(views, ours, proved, strict=True)
        ]

    def __call__(
        self, pieces: SlotPieces, addresses: Mapping[int, SampleAddress], seen: StepMetrics
    ) -> dict[int, Values | Corrupt]:
        """Number of a piece -> its tokens alone, or why they are corrupt, of those that need not be read whole."""
        wanted: dict[int, dict[int, PartsOfField]] = {}
        for number, address in addresses.items():
            source, of = int(pieces.documents.source[number]), pieces.of
            checks, start = self._checks[source], int(of.start[number])
            if checks is None or of.tokens[number] <= self._length:
                continue
            part = checks.part(address.ordinal, start // self._length, address.fields[self._field])
            if part is not None and part.nbytes == of.length[number] * self._dtype.itemsize:
                wanted.setdefault(source, {})[number] = PartsOfField(
                    address, self._field, [[part]], "the checksums of its pieces"
                )
        out: dict[int, Values | Corrupt] = {}
        for source, some in wanted.items():
            read = self._fetch.parts(source, list(some.values()), seen)
            for number, data in zip(some, read, strict=True):
                out[number] = data if isinstance(data, Corrupt) else (np.frombuffer(data[0], self._dtype),)
        return out
