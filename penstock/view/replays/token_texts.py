"""Texts of tokens by a training's tokenizers, individually and as whole sequences."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MOST_TOKENS = 2**16
"""Distinct tokens decoded per field."""
MOST_LETTERS = 200
MOST_RESTORED = 2**20
"""Tokens of the longest sequence decoded as a whole."""


def special_tokens(facts: Mapping[str, Any]) -> dict[int, str]:
    """Return special token -> name, of a field's facts, which may be any JSON."""
    special = facts.get("special")
    named = special.items() if isinstance(special, dict) else ()
    return {int(token): str(name) for token, name in named if token.isdecimal() and len(token) < 19}


def restored_texts(
    tokenizers: Mapping[str, Any], sample: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return field -> text of all its tokens at once, without special tokens and rejected sequences.

    Single tokens would lose whitespace and parts of characters.
    """
    out = {}
    for field in tokenizers.keys() & sample.keys():
        ids = np.asarray(sample[field])
        if ids.dtype.kind in "iu" and ids.size <= MOST_RESTORED:
            special = {*special_tokens(facts.get(field, {})), *_special_ids(tokenizers[field])}
            plain = [token for token in ids.reshape(-1).tolist() if token not in special]
            text = _decoded(tokenizers[field], plain)
            if text is not None:
                out[field] = text
    return out


def _special_ids(tokenizer: Any) -> set[int]:
    ids = getattr(tokenizer, "all_special_ids", ())
    return {one for one in ids if isinstance(one, int)} if isinstance(ids, list | tuple) else set()


def _decoded(tokenizer: Any, ids: list[int]) -> str | None:
    try:
        return str(getattr(tokenizer, "decode", tokenizer)(ids))
    except Exception:  # noqa: BLE001 - the user's code may raise any type
        return None


def token_texts(
    tokenizers: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
) -> dict[str, dict[int, str]]:
    """Return field -> token -> text."""
    return TokenTexts(tokenizers)(*samples)


class TokenTexts:
    """Decodes each token once. One that its tokenizer rejects gets no text."""

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        self._tokenizers = tokenizers
        self._known: dict[str, dict[int, str | None]] = {field: {} for field in tokenizers}

    def __call__(self, *samples: Mapping[str, Any]) -> dict[str, dict[int, str]]:
        return {field: self._texts(field, samples) for field in self._tokenizers}

    def _texts(self, field: str, samples: Iterable[Mapping[str, Any]]) -> dict[int, str]:
        arrays = [np.asarray(sample[field]) for sample in samples if field in sample]
        ids = [np.unique(one) for one in arrays if one.dtype.kind in "iu"]
        known, out = self._known[field], {}
        for token in np.unique(np.concatenate(ids)).tolist()[:MOST_TOKENS] if ids else ():
            if token not in known and len(known) < MOST_TOKENS:
                text = _decoded(self._tokenizers[field], [token])
                known[token] = None if text is None else text[:MOST_LETTERS]
            text = known.get(token)
            if text is not None:
                out[token] = text
        return out
