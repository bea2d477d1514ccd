"""The limit of a filter, and of an order, that a page asks for: no page may keep its server busy for minutes.

The loader takes longer ones, as the author of a plan waits for himself. The time that polars takes grows with the
square of the words. It grows by powers with the depth, as BETWEEN, CASE and some functions have their operand written
several times.
"""

from itertools import accumulate

from loader.dataset.versions.expression import counts, tokens_of
from loader.errors import FieldNotFound

MOST_WORDS = 600
"""Words and operators: some 200 comparisons."""
MOST_DEPTH, MOST_CASE_DEPTH, MOST_WHENS = 6, 1, 40
"""Brackets inside one another; CASE inside one another; WHEN in all."""
REPEATS, MOST_REPEATS = frozenset(("BETWEEN", "CASE", "NULLIF", "RIGHT", "SPLIT_PART")), 8
"""Words whose operand polars writes several times, and their number in all."""


def check_limit(text: str, what: str) -> None:
    """Raise FieldNotFound for an expression beyond the limit. what: "where" or "sort"."""
    tokens = tokens_of(text)
    words = [token for kind, token in tokens if kind == "word"]
    found = {
        f"words and operators, up to {MOST_WORDS}": (
            sum(counts(kind, token) for kind, token in tokens),
            MOST_WORDS,
        ),
        f"brackets inside one another, up to {MOST_DEPTH}": (
            _depth([token for kind, token in tokens if kind == "bracket"], "(", ")"),
            MOST_DEPTH,
        ),
        f"CASE inside one another, up to {MOST_CASE_DEPTH}": (
            _depth(words, "CASE", "END"),
            MOST_CASE_DEPTH,
        ),
        f"WHEN, up to {MOST_WHENS}": (words.count("WHEN"), MOST_WHENS),
        f"of {', '.join(sorted(REPEATS))}, up to {MOST_REPEATS}": (
            sum(word in REPEATS for word in words),
            MOST_REPEATS,
        ),
    }
    beyond = [f"{n:,} {told}" for told, (n, most) in found.items() if n > most]
    if beyond:
        raise FieldNotFound(
            f"the {what} of this page has {'; '.join(beyond)}. Write column IN (...) for many values, or ask in "
            "Python: version.where(...) takes more"
        )


def _depth(tokens: list[str], begin: str, end: str) -> int:
    return max(accumulate((token == begin) - (token == end) for token in tokens), default=0)
