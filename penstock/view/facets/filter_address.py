"""The query of a version's address: parsed to a filter, and written from one."""

from collections.abc import Callable, Sequence
from urllib.parse import quote, unquote

from .facet_terms import range_term
from .version_filter import VersionFilter

ParameterValues = Callable[[str], Sequence[str]]
"""Returns a parameter's values in an address, in order."""


def parse_filter(values: ParameterValues) -> VersionFilter:
    """Return the filter and order that an address names, unchecked."""
    # A form percent-encodes terms with line ends: a browser would send others.
    quoted = [unquote(text) for text in values("t-quoted")]
    terms = [*values("t"), *quoted]
    column = first_value(values, "range")
    if column:
        low = first_value(values, "low")
        high = first_value(values, "high")
        terms.append(range_term(column, low, high))
    return VersionFilter(
        where=first_value(values, "where").strip(),
        terms=tuple(terms),
        words=first_value(values, "words").strip(),
        like=first_value(values, "like"),
        sort=first_value(values, "sort").strip(),
        within=tuple(values("in")),
        without=tuple(values("not")),
        lasso=first_value(values, "lasso").strip(),
    )


def first_value(values: ParameterValues, name: str) -> str:
    """Return the first value of a parameter; "" without one."""
    listed = values(name)
    if not listed:
        return ""
    return listed[0]


def filter_parameters(address: VersionFilter) -> dict[str, str | tuple[str, ...]]:
    """Return parameter -> value, as `page_address.address` takes them; an empty value is left out there."""
    return {
        "where": address.where,
        "t": address.terms,
        "words": address.words,
        "like": address.like,
        "sort": address.sort,
        "in": address.within,
        "not": address.without,
        "lasso": address.lasso,
    }


def form_pairs(address: VersionFilter) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of hidden inputs that make a form send this filter."""
    pairs = []
    for name, value in filter_parameters(address).items():
        values = value
        if isinstance(values, str):
            values = (values,)
        pairs += [_form_pair(name, text) for text in values if text]
    return pairs


def _form_pair(name: str, text: str) -> tuple[str, str]:
    # A browser changes line ends: such a term is percent-encoded.
    if name == "t" and not text.isprintable():
        return "t-quoted", quote(text)
    return name, text
