"""Measure how much of a document is in protected versions, such as evaluations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import ClassVar

import loader
from assets import invalid_option
from loader.errors import DecodeFailed, InvalidSpec
from penstock.search.overlap.compare import ProtectedIndex, overlaps
from penstock.search.overlap.protected_texts import protected_texts
from penstock.search.overlap.sample_texts import TEXT_EXTENSIONS, field_texts, is_text

from ...media.unit import rejected
from ..decoding import STAGE, bytes_of, kind_field
from ..featurizer import Column, Features, Featurizer, version_of

MAX_TEXT_BYTES = 2**30
INDEXES_OF_PROCESS = 4
"""Lists of protected versions whose shingles a worker process holds."""
_REF = re.compile(r"[^@]+@(?:[1-9][0-9]*|v-[0-9a-f]{6,64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOverlap(Featurizer):
    """Share of a document's words that protected versions have, in runs of 13 words.

    Texts of 8 to 12 words in a protected version count as one run, shorter ones only if they are the whole document.
    The featurizer rejects a document that is missing or empty, and texts that are too long, no UTF-8, or no JSON.

    Columns: overlap_ratio, 0 to 1, the largest of all protected versions; None for a missing caption.

    overlap_with: the sample that shares most, by its number: `gsm8k@1[17]`. None for ratio 0.
    """

    root: str
    """URL of the root that has the protected versions. Each worker reads their shingles once."""
    protected: Sequence[str]
    """Refs of the protected versions, each with a number, such as `gsm8k@1`."""
    text: str | None = "txt"
    """Field with a text sample's document or chat: txt, json or jsonl; None skips texts."""
    image: str | None = None
    """Field with a photo's caption; None skips photos."""
    video: str | None = None
    """Field with a clip's caption; None skips clips."""
    audio: str | None = None
    """Field with an audio sample's transcript; None skips audio."""
    max_bytes: int = 128 << 20
    """Length of the longest accepted text in bytes."""
    name: ClassVar[str] = "overlap"
    """Name of the featurizer."""
    output_columns: ClassVar[tuple[str, ...]] = ("overlap_ratio", "overlap_with")

    def __post_init__(self) -> None:
        if isinstance(self.protected, str) or not self.protected:
            raise invalid_option("protected", self.protected, "a list of refs, such as ['gsm8k@1']")
        for ref in self.protected:
            # A tag may move: equal versions of the featurizer would give other columns.
            if not _REF.fullmatch(ref):
                raise InvalidSpec(
                    f"protected: {ref!r} has no number; accepted: such as 'gsm8k@1'",
                    what="protected",
                    given=ref,
                    accepted="such as 'gsm8k@1'",
                )
        if not 1 <= self.max_bytes <= MAX_TEXT_BYTES:
            raise invalid_option("max_bytes", self.max_bytes, f"1 to {MAX_TEXT_BYTES}")
        text_fields = (
            self.text,
            self.image,
            self.video,
            self.audio,
        )
        for field in text_fields:
            if field is not None and not is_text(field):
                endings = ", ".join(TEXT_EXTENSIONS)
                raise InvalidSpec(
                    f"field {field!r} is not text; accepted: names ending in {endings}",
                    what="field",
                    given=field,
                    accepted=TEXT_EXTENSIONS,
                )
        # Lists of a spec and tuples are one policy.
        object.__setattr__(self, "protected", tuple(self.protected))

    @property
    def version(self) -> str:
        """Version; a root that moved keeps it."""
        parameters = asdict(self)
        del parameters["root"]
        return version_of(self.code, parameters)

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        if kind != "text" and field not in sample:
            return _features(None, None)
        data = sample.get(field, b"")
        if kind == "text":
            data = bytes_of(sample, field)
        n_bytes = len(data)
        if n_bytes > self.max_bytes:
            raise rejected(
                STAGE,
                "too_large",
                f"{n_bytes} bytes of text; at most {self.max_bytes}",
                given=n_bytes,
                accepted=self.max_bytes,
            )
        try:
            texts = field_texts(field, data)
        except DecodeFailed as error:
            raise rejected(STAGE, "undecodable", error) from error
        return self._compare(texts)

    def _compare(self, texts: Sequence[str]) -> Features:
        indexes = _indexes(self.root, tuple(self.protected))
        ratio = 0.0
        protected_sample = None
        pairs = zip(
            indexes,
            overlaps(texts, indexes),
            strict=True,
        )
        for index, overlap in pairs:
            # The first of equal ratios.
            if overlap is not None and overlap.ratio > ratio:
                ratio = overlap.ratio
                protected_sample = f"{index.protected.name}[{overlap.ordinal}]"
        return _features(ratio, protected_sample)


def _features(ratio: float | None, protected_sample: str | None) -> Features:
    columns: dict[str, Column] = {
        "overlap_ratio": ratio,
        "overlap_with": protected_sample,
    }
    return Features(fields={}, columns=columns)


@lru_cache(maxsize=INDEXES_OF_PROCESS)
def _indexes(url: str, refs: tuple[str, ...]) -> tuple[ProtectedIndex, ...]:
    """Return the shingles of protected versions. Raises: VersionNotFound; VersionRetired; StoreError."""
    root = loader.Root(url)
    indexes: list[ProtectedIndex] = []
    for ref in refs:
        version = root.open(ref)
        texts = protected_texts(version)
        index = ProtectedIndex(texts)
        indexes.append(index)
    root.close()
    return tuple(indexes)
