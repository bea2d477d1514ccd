"""Words of texts: a text matches with every word and "phrase", and without any -word.

Texts and queries are compared after NFKC, case folding, and NFKC again, so that full-width letters, ligatures and both
cases are equal. A word is a longest run of letters, marks, digits and `_`; each Chinese, Japanese or Korean character
is a word by itself. A scan takes 0.3 s per 1e6 short texts: Arrow looks for a word's characters in all texts, and
checks the limits of words only in the texts that remain. An index of words would be another file to keep, and to trust.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...errors import InvalidRuntime
from ..shards.bitmap import Bools
from ..tables.arrow_values import without_nulls
from ..tables.parquet import integers, string_array, take_rows

MOST_CHARACTERS = 400
"""Most characters of a query."""
FOLD_ROWS = 65_536
"""Texts that are folded together."""
CJK = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c"
    "\uac00-\ud7fb\uf900-\ufaff\U00020000-\U000323af"
)
"""Characters that are words by themselves: Han, Hiragana, Katakana, Bopomofo and Hangul."""
# In a scan, in the syntax of RE2. A word may begin or end at the text's end, or next to a character of no other word.
_WORD_CHARACTERS = r"\pL\pM\pN_"
_LIMIT = rf"(?:^|$|[^{_WORD_CHARACTERS}]|[{CJK}])"
_GAP = rf"[^{_WORD_CHARACTERS}]+"
_CJK_GAP = rf"[^{_WORD_CHARACTERS}]*"
_TERM = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')
_IS_CJK = re.compile(f"[{CJK}]")


class WordTerm(NamedTuple):
    """Words that a text has one after the other."""

    words: tuple[str, ...]
    """Folded words."""
    is_excluded: bool
    """True if matching texts are left out."""


def fold(text: str) -> str:
    """Return a text as it is compared."""
    if text.isascii():
        return text.lower()
    normal = unicodedata.normalize("NFKC", text)
    return unicodedata.normalize("NFKC", normal.casefold())


def text_words(text: str) -> list[str]:
    """Return the words of a folded text, in order."""
    words: list[str] = []
    word = ""
    for character in text:
        is_cjk = _IS_CJK.match(character) is not None
        is_part = character == "_" or unicodedata.category(character)[0] in "LMN"
        if is_part and not is_cjk:
            word += character
            continue
        if word:
            words.append(word)
            word = ""
        if is_cjk:
            words.append(character)
    if word:
        words.append(word)
    return words


def parse_words(query: str) -> list[WordTerm]:
    """Return the terms of a query. Raises: InvalidRuntime for one without words, or with too many characters."""
    if not isinstance(query, str):
        raise InvalidRuntime(f"words = {query!r:.80}; pass a text, such as 'red cup -empty'")
    if len(query) > MOST_CHARACTERS:
        raise InvalidRuntime(
            f"the words have {len(query):,} characters; at most {MOST_CHARACTERS} are accepted: pass fewer words",
            what="words",
            given=len(query),
            accepted=MOST_CHARACTERS,
        )
    terms = []
    for match in _TERM.finditer(query):
        is_excluded = match["minus"] == "-"
        if match["phrase"] is not None:
            words = text_words(fold(match["phrase"]))
            if words:
                terms.append(WordTerm(tuple(words), is_excluded))
            continue
        words = text_words(fold(match["word"]))
        if is_excluded and words:
            terms.append(WordTerm(tuple(words), is_excluded))
            continue
        terms += [WordTerm((word,), is_excluded) for word in words]
    if not terms:
        raise InvalidRuntime(
            f"{query!r} has no word: pass words, \"phrases\" and -words, such as 'red cup -empty'",
            what="words",
            given=query,
        )
    return terms


def fold_texts(texts: pa.Array) -> pa.ChunkedArray:
    """Return texts as they are compared, each with a line feed after it; a null is a text without words."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    (line_feed,) = string_array(["\n"])
    pieces = []
    for start in range(0, len(texts), FOLD_ROWS):
        block = without_nulls(texts.slice(start, FOLD_ROWS))
        # One text for all: Python folds 100 MB/s of it, and 1e6 texts one by one take seconds. A line feed is no
        # part of a word, and folding makes none.
        block = pc.replace_substring(block, "\n", " ")
        ends_of_list = np.array([0, len(block)], np.int32)
        whole = pa.Int32Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(ends_of_list)])
        listed = pa.ListArray.from_arrays(whole, block)
        joined = pc.binary_join(listed, line_feed)[0].as_py() + "\n"
        data = fold(joined).encode()
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        offsets = np.zeros(len(block) + 1, np.int32)
        offsets[1:] = ends
        pieces.append(
            pa.StringArray.from_buffers(
                len(block),
                pa.py_buffer(offsets),
                pa.py_buffer(data),
            )
        )
    if not pieces:
        return pa.chunked_array([], pa.string())
    return pa.chunked_array(pieces)


def in_order(terms: Sequence[WordTerm]) -> list[WordTerm]:
    """Return terms in the order in which they leave the fewest texts: long words first, exclusions last."""
    return sorted(terms, key=_rank)


def _rank(term: WordTerm) -> tuple[bool, int]:
    longest = max(len(word) for word in term.words)
    return term.is_excluded, -longest


def term_matches(texts: pa.ChunkedArray, term: WordTerm) -> Bools:
    """Return bool [n]: whether folded texts have a term's words, one after the other."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    longest = max(term.words, key=len)
    has_characters = pc.match_substring(texts, longest)
    candidates = np.flatnonzero(_bools(has_characters))
    matches = np.zeros(len(texts), bool)
    pattern = _pattern(term.words)
    if pattern == re.escape(longest) or not len(candidates):
        matches[candidates] = True  # a CJK character has no limits to check
        return matches
    of_candidates = take_rows(texts, candidates)
    is_match = pc.match_substring_regex(of_candidates, pattern)
    matches[candidates[_bools(is_match)]] = True
    return matches


def _pattern(words: Sequence[str]) -> str:
    """Return an RE2 expression for neighbouring words with their limits."""
    pattern = ""
    was_cjk = False
    for number, word in enumerate(words):
        is_cjk = _IS_CJK.match(word) is not None
        if number:
            gap = _GAP
            if is_cjk or was_cjk:
                gap = _CJK_GAP
            pattern += gap
        elif not is_cjk:
            pattern += _LIMIT
        pattern += re.escape(word)
        was_cjk = is_cjk
    if not was_cjk:
        pattern += _LIMIT
    return pattern


def _bools(column: pa.ChunkedArray) -> Bools:
    import pyarrow.compute as pc  # 40 ms, saved at startup

    as_bytes: Bools = integers(pc.cast(column, pa.int8())).astype(bool)
    return as_bytes
