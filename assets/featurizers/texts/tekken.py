"""Tekken, the vocabulary that ships with mistral-common (Apache-2.0): a byte-level BPE of 131,072 tokens.

Decoding restores every text. Loading takes about 1.5 s and 170 MiB per process.
"""

import hashlib
from functools import cache
from typing import Any

from loader.errors import MissingDependency

VOCABULARY = "tekken_240718.json"
N_IDS = 131_072
SHA256 = "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516"
_INSTALL = "pip install -e '.[pipeline]'"


def encode(text: str) -> list[int]:
    """Return token ids; special tokens in the text stay text. Raises: ValueError beyond the tokenizer's limits."""
    ids: list[int] = tokenizer().encode(text, bos=False, eos=False)
    return ids


@cache
def tokenizer() -> Any:
    """Load the tokenizer. Raises: MissingDependency."""
    from importlib.resources import as_file, files

    try:
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    except ImportError as error:
        raise MissingDependency(
            f"tokens need the package 'mistral-common', which is not installed: {_INSTALL}",
            what="mistral-common",
        ) from error
    with as_file(files("mistral_common") / "data" / VOCABULARY) as path:
        digest = "no such file"
        if path.exists():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != SHA256:
            raise MissingDependency(
                f"the installed mistral-common has another {VOCABULARY} than this code expects: "
                f"{digest}, not {SHA256}; install the release in constraints.txt: {_INSTALL}",
                what=VOCABULARY,
                given=digest,
                accepted=SHA256,
            )
        return Tekkenizer.from_file(path)
