"""Texts of tokens, one by one, by the tokenizers of a training."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MOST_TOKENS = 2**16
"""Different tokens of a field whose text is asked for."""
MOST_LETTERS = 200


def token_texts(
    tokenizers: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
) -> dict[str, dict[int, str]]:
    """Return field -> token -> text of the tokens in these samples."""
    return TokenTexts(tokenizers)(*samples)


class TokenTexts:
    """Texts of the tokens of samples, each token's asked for once.

    A token that its tokenizer refuses has no text: it may lie outside the vocabulary, which the viewer is to show.
    """

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        self._tokenizers = tokenizers
        self._known: dict[str, dict[int, str | None]] = {field: {} for field in tokenizers}

    def __call__(self, *samples: Mapping[str, Any]) -> dict[str, dict[int, str]]:
        """Return field -> token -> text of the tokens in these samples."""
        return {field: self._texts(field, samples) for field in self._tokenizers}

    def _texts(self, field: str, samples: Iterable[Mapping[str, Any]]) -> dict[int, str]:
        arrays = [np.asarray(sample[field]) for sample in samples if field in sample]
        ids = [np.unique(one) for one in arrays if one.dtype.kind in "iu"]
        known, found = self._known[field], {}
        for token in np.unique(np.concatenate(ids)).tolist()[:MOST_TOKENS] if ids else ():
            if token not in known and len(known) < MOST_TOKENS:
                known[token] = self._text(field, token)
            text = known.get(token)
            if text is not None:
                found[token] = text
        return found

    def _text(self, field: str, token: int) -> str | None:
        tokenizer = self._tokenizers[field]
        try:
            return str(getattr(tokenizer, "decode", tokenizer)([token]))[:MOST_LETTERS]
        except Exception:  # noqa: BLE001 - of the user's code: of any type
            return None
