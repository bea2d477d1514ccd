"""Read the texts of a version's samples, in blocks of bounded bytes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loader import Version
from loader.dataset.reading.pinned_reads import Reading
from loader.dataset.reading.sample_places import SamplePlaces
from loader.dataset.reading.verified_bucket_reads import read_places
from loader.dataset.search.vectors import open_reading
from loader.errors import Corrupt, DecodeFailed, FieldNotFound
from loader.modalities import find_decoder

from .shingles import Int64s

TEXT_EXTENSIONS = ("txt", "json", "jsonl")
"""Extensions of fields with texts. Each string in JSON is a text, such as a turn of a chat."""
BLOCK_SAMPLES = 1024
BLOCK_BYTES = 32 * 2**20
"""Most bytes of texts in memory, if no sample has more."""


class SampleTexts(NamedTuple):
    ordinal: int
    """Number of the live sample in its version."""
    texts: list[str]
    """Texts of its fields; a chat has one for each string."""


def text_fields(version: Version, field: str | None = None) -> list[str]:
    """Return the fields to compare: `field`, or all with texts. Raises: FieldNotFound."""
    fields = [name for name in version.fields if is_text(name)]
    if field is None:
        return fields
    if field not in fields:
        names = ", ".join(fields) or "none"
        raise FieldNotFound(
            f"{version.name} has no text field {field!r}. Its fields ending in txt, json or jsonl: {names}",
            what=field,
            where=version.name,
            accepted=names,
        )
    return [field]


def is_text(field: str) -> bool:
    """Return whether the texts of a field are compared."""
    _, _, extension = field.rpartition(".")
    return extension.lower() in TEXT_EXTENSIONS


def sample_texts(version: Version, fields: Sequence[str]) -> Iterator[SampleTexts]:
    """Yield the texts of all live samples, in order. Raises: DecodeFailed; Corrupt; StoreError."""
    reader = _TextReader(version)
    n_samples = len(version)
    try:
        for start in range(0, n_samples, BLOCK_SAMPLES):
            stop = min(n_samples, start + BLOCK_SAMPLES)
            ordinals = np.arange(start, stop)
            yield from reader.read(ordinals, fields)
    finally:
        reader.close()


class _FieldBlock(NamedTuple):
    """One field of a block of samples."""

    numbers: Int64s
    """int64 [m]: samples of the block that have the field."""
    places: SamplePlaces
    """Places of its bytes, in these samples."""


class _TextReader:
    def __init__(self, version: Version) -> None:
        self._version = version
        self._reading = open_reading(version)

    def close(self) -> None:
        if self._reading.files is not None:
            self._reading.files.close()

    def read(
        self,
        ordinals: Int64s,
        fields: Sequence[str],
    ) -> Iterator[SampleTexts]:
        """Yield the texts of these samples. ordinals: int64 [n], ascending by one."""
        blocks: dict[str, _FieldBlock] = {}
        nbytes = np.zeros(len(ordinals), np.int64)
        for field in fields:
            block = self._field_block(ordinals, field)
            if block is not None:
                blocks[field] = block
                nbytes[block.numbers] += block.places.fields[field].nbytes
        # int64 [n]: number of the piece that has each sample.
        piece = np.cumsum(nbytes) // BLOCK_BYTES
        for piece_number in np.unique(piece):
            samples = np.flatnonzero(piece == piece_number)
            yield from self._read_piece(ordinals[samples], samples, blocks)

    def _field_block(
        self,
        ordinals: Int64s,
        field: str,
    ) -> _FieldBlock | None:
        """Return the places of a field; None if no sample has it."""
        version = self._version
        # Parts may lack the field's group.
        part, _ = version.parts.locate(ordinals)
        group = version.group_of(field)
        part_has_field = version.parts.has_group(group)
        numbers = np.flatnonzero(part_has_field[part])
        if not len(numbers):
            return None
        places = version.places(ordinals[numbers], [field])
        return _FieldBlock(numbers, places)

    def _read_piece(
        self,
        ordinals: Int64s,
        samples: Int64s,
        blocks: dict[str, _FieldBlock],
    ) -> Iterator[SampleTexts]:
        """Yield the texts of some samples of a block. samples: int64 [n], their numbers, ascending by one."""
        # Fields of one sample are read apart.
        texts: list[list[str]] = [[] for _ in samples]
        for field, block in blocks.items():
            is_in_piece = np.isin(block.numbers, samples)
            positions = np.flatnonzero(is_in_piece)
            reads = read_places(
                self._find_reading,
                block.places,
                {field: positions},
            )
            for position, _, data in reads:
                if isinstance(data, Corrupt):
                    raise data
                number = block.numbers[position] - samples[0]
                ordinal = ordinals[number]
                texts[number] += self._decode(ordinal, field, bytes(data))
        for ordinal, text in zip(ordinals.tolist(), texts, strict=True):
            yield SampleTexts(ordinal, text)

    def _find_reading(self, version: int) -> Reading:
        return self._reading

    def _decode(
        self,
        ordinal: int,
        field: str,
        data: bytes,
    ) -> list[str]:
        try:
            return field_texts(field, data)
        except DecodeFailed as error:
            version = self._version
            (key,) = version.keys(np.array([ordinal]))
            raise undecodable(version.name, key, field, error) from error


def undecodable(
    name: str,
    key: str,
    field: str,
    error: DecodeFailed,
) -> DecodeFailed:
    """Return the error about a text that is not UTF-8, or no JSON. name: of the version or batch."""
    return DecodeFailed(
        f"{name}, sample {key!r}, field {field!r}: {error}. Exclude the sample (penstock exclude), or compare another "
        "field",
        what=field,
        where=f"{name}, sample {key!r}",
        given=str(error),
    )


def field_texts(field: str, data: bytes) -> list[str]:
    """Return the texts of a field: a txt whole, and each string of JSON but names. Raises: DecodeFailed."""
    value = find_decoder(field)(data, None)
    texts: list[str] = []
    # A stack: JSON may be nested as deeply as its parser allows.
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return texts
