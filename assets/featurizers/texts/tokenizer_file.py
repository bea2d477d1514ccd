"""Load a tokenizer from a file: a `tokenizer.json` of tokenizers, or a sentencepiece `.model`."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidSpec, MissingDependency

from .bounded_file import read_bounded

MAX_FILE_BYTES = 256 * 2**20
"""Largest tokenizer file: ten times the largest in use."""
PROBE_BYTES = 64 * 2**10
_INSTALL = "pip install -e '.[texts]'"
_SPECIAL_TYPES = ("control", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    ids: list[int]
    spans: NDArray[np.int64]
    """int64 [n, 2]: first character and end of each token in the text."""


class TokenizerFile:
    """A tokenizer from a file. Encodes documents; `encode_template` also parses special tokens."""

    def __init__(self, path: str, sha256: str) -> None:
        self.path = Path(path)
        self.sha256 = sha256
        data = _read(self.path, sha256)
        self.is_json = self.path.suffix == ".json"
        if self.is_json:
            self._documents = _json_tokenizer(self.path, data)
            self._documents.encode_special_tokens = True  # a text like `</s>` is text
            # A second tokenizer: in a rendered chat, `</s>` comes from the template and is a special token.
            self._template = _json_tokenizer(self.path, data)
            self.n_ids = 1 + max(self._documents.get_vocab(with_added_tokens=True).values(), default=-1)
        else:
            self._documents = _sentencepiece(self.path, data)
            self.n_ids = self._documents.vocab_size()
        if not self.n_ids:
            raise InvalidSpec(
                f"tokenizer {str(self.path)!r} has no token", what="tokenizer", where=self.path, given=0
            )

    @property
    def special_tokens(self) -> list[str]:
        """Texts that `encode_template` turns into special tokens. Only for a `tokenizer.json`."""
        added = self._template.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special and token.content]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a document, without special tokens: their texts stay text."""
        if self.is_json:
            encoding = self._documents.encode(text, add_special_tokens=False)
            ids: list[int] = encoding.ids
            return ids
        pieces: list[int] = self._documents.encode(text)
        return pieces

    def encode_template(self, text: str) -> EncodedText:
        """Return the tokens of a rendered chat, with its special tokens. Only for a `tokenizer.json`."""
        encoding = self._template.encode(text, add_special_tokens=False)
        spans = np.array(encoding.offsets, np.int64)
        return EncodedText(ids=encoding.ids, spans=spans.reshape(-1, 2))

    def probe(self) -> str:
        """Return a hash of the ids of a fixed text: another release of the library may split text otherwise."""
        ids = np.array(self.encode(_probe_text()), "<i8")
        return hashlib.sha256(ids.tobytes()).hexdigest()


@lru_cache(maxsize=4)
def load_tokenizer(path: str, sha256: str) -> TokenizerFile:
    """Return the tokenizer, loaded once per process. Raises: InvalidSpec, MissingDependency."""
    return TokenizerFile(path, sha256)


@lru_cache(maxsize=4)
def probe_hash(path: str, sha256: str) -> str:
    """Return `TokenizerFile.probe` of a file, computed once per process. Raises: as `load_tokenizer`."""
    return load_tokenizer(path, sha256).probe()


def _read(path: Path, sha256: str) -> bytes:
    if path.suffix not in (".json", ".model"):
        raise InvalidSpec(
            f"tokenizer={str(path)!r}; accepted: a tokenizer.json, or a sentencepiece file *.model",
            what="tokenizer",
            where=path,
            accepted="a tokenizer.json, or a sentencepiece file *.model",
        )
    data = read_bounded(path, f"tokenizer={str(path)!r}", MAX_FILE_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise InvalidSpec(
            f"tokenizer={str(path)!r} has sha256 {digest}, not {sha256!r}. Restore the file. For another tokenizer, "
            "pass its sha256 and another field, such as 'v2.tokens.npy'",
            what="sha256",
            where=path,
            given=digest,
            accepted=sha256,
        )
    return data


def _json_tokenizer(path: Path, data: bytes) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependency(
            f"{path.name} needs the package 'tokenizers': {_INSTALL}", what="tokenizers", where=path
        ) from error
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise InvalidSpec(
            f"tokenizer={str(path)!r} is not a tokenizer.json: {error}",
            what="tokenizer.json",
            where=path,
            given=str(error),
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _sentencepiece(path: Path, data: bytes) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingDependency(
            f"{path.name} needs the package 'sentencepiece': {_INSTALL}", what="sentencepiece", where=path
        ) from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise InvalidSpec(
            f"tokenizer={str(path)!r} is not a sentencepiece model: {error}",
            what="sentencepiece model",
            where=path,
            given=str(error),
        ) from error


def _probe_text() -> str:
    """Return 64 KiB that touch what tokenizers treat in different ways; the same text forever."""
    block = (
        "The quick brown fox jumps over 13 lazy dogs, isn't it?  It's 3.14159 or 1,000,000!\r\n\tdef f(x):\n"
        "        return x**2 # caf\u00e9 cafe\u0301 na\u00efve \u72d0\u72f8 \u0644\u063a\u0629 \u0939\u093f\u0928 "
        "\U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467 \ufeff \u00a0 </s> <|endoftext|> "
        + json.dumps({"key": [1, None, "\\n"]})
        + "\n"
    )
    n_blocks = PROBE_BYTES // len(block.encode()) + 1
    return block * n_blocks
