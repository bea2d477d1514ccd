"""Tokenize text with Tekken, whose vocabulary ships with mistral-common (Apache-2.0).

A byte-level BPE of 131,072 tokens; decoding restores every text. Loading takes about 1.5 s and 170 MiB per process.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from loader.errors import MissingDependency

from ..media.unit import rejected
from .decoding import STAGE, decoded, field_of
from .featurizer import Column, Features, Featurizer, version_of

VOCABULARY = "tekken_240718.json"
VOCABULARY_TOKENS = 131_072
VOCABULARY_SHA256 = "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens(Featurizer):
    """Tokens of documents, captions and transcripts.

    A missing or empty document is rejected; a caption then gives no tokens. Text that the tokenizer cannot split
    (hundreds of thousands of blanks in a row) is rejected.

    Field `tokens.npy`: int32 [n], each from 1000 to 131,071. The first 1000 ids are special tokens and never used: a
    text like `</s>` is text. Columns: n_tokens, None for a missing caption.
    """

    text: str | None = "txt"
    """Txt field with a text sample's document; None skips texts."""
    image: str | None = None
    """Txt field with a photo's caption; None skips photos."""
    video: str | None = None
    """Txt field with a clip's caption; None skips clips."""
    audio: str | None = None
    """Txt field with an audio sample's transcript; None skips audio."""
    max_bytes: int = 8 << 20
    """Length of the longest accepted text in bytes."""
    name: ClassVar[str] = "tokens"
    """Name of the featurizer."""
    code: ClassVar[int] = 2
    output_fields: ClassVar[tuple[str, ...]] = ("tokens.npy",)
    output_columns: ClassVar[tuple[str, ...]] = ("n_tokens",)

    def __post_init__(self) -> None:
        if not 1 <= self.max_bytes <= 1 << 30:
            raise ValueError(f"max_bytes={self.max_bytes}; accepted: 1 to {1 << 30}")
        for field in (self.text, self.image, self.video, self.audio):
            if field is not None and field.rpartition(".")[2].lower() != "txt":
                raise ValueError(f"field {field!r} is not text; accepted: names ending in txt")

    @property
    def version(self) -> str:
        return version_of(self.code, asdict(self), VOCABULARY_SHA256)

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        facts = {
            "tokenizer": VOCABULARY,
            "tokenizer_sha256": VOCABULARY_SHA256,
            "vocabulary": VOCABULARY_TOKENS,
            "dims": ["token"],
            "text_fields": sorted({field for fields in self.inputs.values() for field in fields}),
        }
        return {"tokens.npy": facts}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = field_of(self.inputs, kind)
        if kind != "text" and not sample.get(field):
            return _features([] if field in sample else None)
        n_bytes = len(sample.get(field, b""))
        if n_bytes > self.max_bytes:
            raise rejected(STAGE, "too_large", f"{n_bytes} bytes of text; at most {self.max_bytes}")
        text: str = decoded(sample, field)
        try:
            ids = _tokenizer().encode(text, bos=False, eos=False)
        except ValueError as error:  # the tokenizer's regular expression exceeds a limit
            raise rejected(STAGE, "untokenizable", error) from error
        return _features(ids)


def _features(ids: list[int] | None) -> Features:
    columns: dict[str, Column] = {"n_tokens": None if ids is None else len(ids)}
    return Features(fields={"tokens.npy": np.array(ids or [], np.int32)}, columns=columns)


@cache
def _tokenizer() -> Any:
    """Load the tokenizer. Raises: MissingDependency."""
    from importlib.resources import as_file, files

    install = "pip install -e '.[pipeline]'"
    try:
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    except ImportError as error:
        raise MissingDependency(
            f"tokens need the package 'mistral-common', which is not installed: {install}"
        ) from error
    with as_file(files("mistral_common") / "data" / VOCABULARY) as path:
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "no such file"
        if digest != VOCABULARY_SHA256:
            raise MissingDependency(
                f"the installed mistral-common has another {VOCABULARY} than this code expects: "
                f"{digest}, not {VOCABULARY_SHA256}; install the release in constraints.txt: {install}"
            )
        return Tekkenizer.from_file(path)
