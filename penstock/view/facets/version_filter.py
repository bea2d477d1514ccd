"""The filter of a version's page: SQL of its address, checked before anything is read."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate
from urllib.parse import quote_plus

import loader
from loader.dataset.search.index_record import text_fields
from loader.dataset.search.words import parse_words
from loader.dataset.versions.expression import counts, sql_tokens
from loader.dataset.versions.samples_table import expression_columns
from loader.errors import FieldNotFound, InvalidRuntime

from ...search.map.lasso import parse_lasso
from ...text import clean
from .map_columns import map_columns

# Limits for filter and sort expressions, so that a page cannot keep its server busy for minutes. polars takes time
# quadratic in the words and exponential in the depth, because BETWEEN, CASE and some functions repeat their operand.
MOST_WORDS = 600
"""Most words and operators: about 200 comparisons."""
MOST_DEPTH = 6
MOST_CASE_DEPTH = 1
MOST_WHENS = 40
"""Deepest bracket and CASE nesting, and most WHEN clauses."""
REPEATS = frozenset(("BETWEEN", "CASE", "NULLIF", "RIGHT", "SPLIT_PART"))
MOST_REPEATS = 8
"""Keywords whose operand polars repeats, and how many are allowed."""
MOST_TERMS = 40
"""Most terms (`t=`) of a filter."""
MOST_ADDRESS_BYTES = 4_000
"""Most bytes of a page's whole filter in its address: each of some hundred links repeats it."""
MOST_SLICES = 10
"""Most slices (`in=`, `not=`) of a filter: each is read from the store."""


def check_limit(text: str, what: str) -> None:
    """Raise FieldNotFound beyond the limits. what: "where", "term" or "sort"."""
    tokens = sql_tokens(text)
    words = [token for kind, token in tokens if kind == "word"]
    counts_by_limit = {
        f"words and operators, up to {MOST_WORDS}": (
            sum(counts(kind, token) for kind, token in tokens),
            MOST_WORDS,
        ),
        f"nested brackets, up to {MOST_DEPTH}": (
            _depth(
                [token for kind, token in tokens if kind == "bracket"],
                "(",
                ")",
            ),
            MOST_DEPTH,
        ),
        f"nested CASE, up to {MOST_CASE_DEPTH}": (
            _depth(
                words,
                "CASE",
                "END",
            ),
            MOST_CASE_DEPTH,
        ),
        f"WHEN, up to {MOST_WHENS}": (words.count("WHEN"), MOST_WHENS),
        f"of {', '.join(sorted(REPEATS))}, up to {MOST_REPEATS}": (
            sum(word in REPEATS for word in words),
            MOST_REPEATS,
        ),
    }
    beyond = [f"{n:,} {limit}" for limit, (n, most) in counts_by_limit.items() if n > most]
    if beyond:
        raise FieldNotFound(
            f"the {what} of this page has {'; '.join(beyond)}. Write column IN (...) for many values, or ask in "
            "Python: version.where(...) takes more"
        )


def _depth(
    tokens: list[str],
    begin: str,
    end: str,
) -> int:
    # Running sum of +1 and -1: its largest value is the depth.
    return max(accumulate((token == begin) - (token == end) for token in tokens), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFilter:
    """The filter and order that an address asks for. A sample must satisfy every part but `like` and `sort`."""

    where: str = ""
    """SQL expression, or ""."""
    terms: tuple[str, ...] = ()
    """SQL expressions over one column each, written by facets."""
    words: str = ""
    """Words that the sample's texts must have, such as `red cup -empty`."""
    like: str = ""
    """Keys or RUN@STEP, with commas between: samples whose mean the others are compared with; "" for no ranking."""
    sort: str = ""
    """SQL expression, prefixed with `-` for descending; "" for the version's order."""
    within: tuple[str, ...] = ()
    """Slices that must contain the sample (`in=`)."""
    without: tuple[str, ...] = ()
    """Slices that must not contain the sample (`not=`)."""
    lasso: str = ""
    """Polygon on the map that must contain the sample: `X,Y;X,Y;...`; "" for all samples."""

    @property
    def sql(self) -> str:
        """Return `where` and all terms as one expression for `version.where()`; "" for all samples."""
        parts = [text for text in (self.where, *self.terms) if text]
        if len(parts) < 2:
            return "".join(parts)
        return " AND ".join(f"({text})" for text in parts)

    @property
    def is_rule(self) -> bool:
        """True if `sql` is all of the filter: there are no words, ranking, slices and lasso."""
        return self == VersionFilter(where=self.where, terms=self.terms, sort=self.sort)

    @property
    def is_filtered(self) -> bool:
        """True if it may leave samples out."""
        return self != VersionFilter(like=self.like, sort=self.sort)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFilter:
    """The valid part of a filter."""

    filter: VersionFilter
    """Without the parts that were refused."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Term -> its column."""
    names: Mapping[str, Set[str]] = field(default_factory=dict)
    """Expression -> the columns that it names."""
    errors: tuple[str, ...] = ()
    """A sentence for each refused part."""
    of_map: Set[str] = frozenset()
    """Columns of the map, which are not columns of the samples table."""

    @property
    def map_terms(self) -> tuple[str, ...]:
        """Return the terms over columns of the map."""
        return tuple(term for term in self.filter.terms if self.columns.get(term) in self.of_map)

    @property
    def sql(self) -> str:
        """Return `where` and all terms for `version.where()`, without the ones over columns of the map."""
        of_map = self.map_terms
        stored = tuple(term for term in self.filter.terms if term not in of_map)
        return replace(self.filter, terms=stored).sql

    def dropping(self, text: str, error: str) -> "CheckedFilter":
        """Return the filter without an expression, and with its error."""
        valid = self.filter
        where = valid.where
        if where == text:
            where = ""
        sort = valid.sort
        if sort.removeprefix("-") == text:
            sort = ""
        terms = tuple(term for term in valid.terms if term != text)
        valid = replace(
            valid,
            where=where,
            sort=sort,
            terms=terms,
        )
        return replace(
            self,
            filter=valid,
            errors=(*self.errors, error),
        )

    def dropping_words(self, error: str) -> "CheckedFilter":
        """Return the filter without its words, and with their error."""
        valid = replace(self.filter, words="")
        return replace(self, filter=valid, errors=(*self.errors, error))

    def dropping_like(self, error: str) -> "CheckedFilter":
        """Return the filter without its ranking, and with its error."""
        valid = replace(self.filter, like="")
        return replace(self, filter=valid, errors=(*self.errors, error))

    def dropping_lasso(self, error: str) -> "CheckedFilter":
        """Return the filter without its lasso, and with its error."""
        valid = replace(self.filter, lasso="")
        return replace(self, filter=valid, errors=(*self.errors, error))

    def dropping_slice(self, name: str, error: str) -> "CheckedFilter":
        """Return the filter without a slice, and with its error."""
        valid = replace(
            self.filter,
            within=tuple(one for one in self.filter.within if one != name),
            without=tuple(one for one in self.filter.without if one != name),
        )
        return replace(self, filter=valid, errors=(*self.errors, error))


def check_filter(
    version: "loader.Version",
    address: VersionFilter,
    most_bytes: int | None = None,
) -> CheckedFilter:
    """Return the parts of a filter that polars may evaluate, and the errors of the others. Reads no table.

    most_bytes: of all parts together in an address; None for any number.
    """
    checked = CheckedFilter(filter=replace(address, terms=_distinct(address.terms)))
    n_terms = len(checked.filter.terms)
    if n_terms > MOST_TERMS:
        error = (
            f"the filter has {n_terms:,} terms (t=); accepted are up to {MOST_TERMS}. Write the others into "
            "where, such as label IN ('cat', 'dog')"
        )
        without_terms = replace(checked.filter, terms=())
        checked = replace(
            checked,
            filter=without_terms,
            errors=(error,),
        )
    n_slices = len(address.within) + len(address.without)
    if n_slices > MOST_SLICES:
        error = f"the filter names {n_slices:,} slices (in=, not=); accepted are up to {MOST_SLICES}"
        without_slices = replace(checked.filter, within=(), without=())
        errors = (*checked.errors, error)
        checked = replace(checked, filter=without_slices, errors=errors)
    if most_bytes is not None:
        # Before any expression is parsed: parsing takes time that grows with the length.
        checked = _short_enough(checked, most_bytes)
    checked = _without_wrong_lasso(checked)
    checked = _without_wrong_words(version, checked)
    checked = _in_one_order(checked)
    names = {}
    for what, text in _expressions(checked.filter):
        try:
            names[text] = _columns(
                version,
                what,
                text,
            )
        except FieldNotFound as error:
            checked = checked.dropping(text, str(error))
    columns = {term: next(iter(names[term])) for term in checked.filter.terms}
    return _shorten(
        version,
        replace(
            checked,
            columns=columns,
            names=names,
            of_map=frozenset(map_columns(version)),
        ),
    )


def has_texts(version: "loader.Version") -> bool:
    """Return whether a version has texts that words are searched in."""
    try:
        text_fields(version, None)
    except FieldNotFound:
        return False
    return True


def address_bytes(text: str) -> int:
    """Return the bytes that a text takes in an address."""
    return len(quote_plus(text))


def _short_enough(checked: CheckedFilter, most_bytes: int) -> CheckedFilter:
    """Return the filter without its longest parts, if it is too long for an address."""
    while True:
        valid = checked.filter
        searched = [("words", valid.words), ("like", valid.like)]
        texts = [*_expressions(valid), *searched]
        n_bytes = sum(address_bytes(text) for _, text in texts)
        if n_bytes <= most_bytes:
            return checked

        def length(pair: tuple[str, str]) -> int:
            return address_bytes(pair[1])

        what, longest = max(texts, key=length)
        error = (
            f"the filter takes {n_bytes:,} bytes in the address, {address_bytes(longest):,} of them for the {what}; "
            f"accepted are up to {most_bytes:,}, as each link repeats them. Save a rule (penstock slice save), or ask "
            "in Python: version.where(...)"
        )
        if what == "words":
            checked = checked.dropping_words(error)
        elif what == "like":
            checked = checked.dropping_like(error)
        else:
            checked = checked.dropping(longest, error)


def _without_wrong_lasso(checked: CheckedFilter) -> CheckedFilter:
    if not checked.filter.lasso:
        return checked
    try:
        parse_lasso(checked.filter.lasso)
    except InvalidRuntime as error:
        return checked.dropping_lasso(str(error))
    return checked


def _without_wrong_words(version: "loader.Version", checked: CheckedFilter) -> CheckedFilter:
    if not checked.filter.words:
        return checked
    try:
        parse_words(checked.filter.words)
        text_fields(version, None)
    except (InvalidRuntime, FieldNotFound) as error:
        return checked.dropping_words(str(error))
    return checked


def _in_one_order(checked: CheckedFilter) -> CheckedFilter:
    valid = checked.filter
    if not valid.like or not valid.sort:
        return checked
    error = "like= and sort= are two orders: the samples are ranked by like=. Remove one of them"
    return replace(
        checked,
        filter=replace(valid, sort=""),
        errors=(*checked.errors, error),
    )


def _expressions(address: VersionFilter) -> list[tuple[str, str]]:
    pairs = [("where", address.where), ("sort", address.sort.removeprefix("-"))]
    pairs += [("term", term) for term in address.terms]
    return [(what, text) for what, text in pairs if text]


def _distinct(terms: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term for term in terms if term.strip()))


def _columns(
    version: "loader.Version",
    what: str,
    text: str,
) -> set[str]:
    check_limit(text, what)
    of_map = map_columns(version)
    columns = expression_columns(
        version,
        text,
        f"{what} {clean(text, 200)!r}",
        of_map,
    )
    named = sorted(columns.intersection(of_map))
    if named and what == "where":
        raise FieldNotFound(
            f"where {clean(text, 200)!r} names {named[0]}, a column of the map, which no SQL of a plan can. "
            "Write it as a term (t=), or click its facet"
        )
    if what == "term" and len(columns) != 1:
        names = ", ".join(sorted(columns)) or "none"
        raise FieldNotFound(
            f"the term {clean(text, 200)!r} names {len(columns)} columns ({names}); a term (t=) names one column. "
            "Write an expression over several columns into where"
        )
    return columns


def _shorten(version: "loader.Version", checked: CheckedFilter) -> CheckedFilter:
    """Return the filter without its last terms if all together exceed the limits of `version.where`."""
    while checked.sql and checked.filter.terms:
        try:
            expression_columns(
                version,
                checked.sql,
                "the whole filter",
            )
        except FieldNotFound as error:
            checked = checked.dropping(checked.filter.terms[-1], str(error))
        else:
            break
    return checked
