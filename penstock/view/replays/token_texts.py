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
    """Return field -> token -> text of the tokens in these samples.

    A token that its tokenizer refuses has no text: it may lie outside the vocabulary, which the viewer is to show.
    """
    found = {}
    samples = list(samples)
    for field, tokenizer in tokenizers.items():
        decode = getattr(tokenizer, "decode", tokenizer)
        arrays = [np.asarray(sample[field]) for sample in samples if field in sample]
        ids = [np.unique(one) for one in arrays if one.dtype.kind in "iu"]
        texts = {}
        for token in np.unique(np.concatenate(ids)).tolist()[:MOST_TOKENS] if ids else ():
            try:
                texts[token] = str(decode([token]))[:MOST_LETTERS]
            except Exception:  # noqa: BLE001 - of the user's code: of any type
                continue
        found[field] = texts
    return found
