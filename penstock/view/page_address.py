"""Addresses of pages, relative to the first page."""

from urllib.parse import quote, urlencode

from loader.errors import InvalidRuntime


class WrongParameter(InvalidRuntime):
    """A parameter of an address is not accepted."""


def address(*parts: object, **query: object) -> str:
    """Return a relative path of quoted parts, with a query of the non-empty values; a list repeats its name."""
    path = "/".join(quote(str(part), safe="@") for part in parts)
    parameters = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    if not parameters:
        return path
    # "=" may stand in a value: a page has hundreds of terms with it.
    query_text = urlencode(parameters, doseq=True, safe="=")
    return f"{path}?{query_text}"


def version_address(ref: str, *parts: object, **query: object) -> str:
    """Return the address of a version such as `photos@7`, or of a page below it."""
    dataset, _, number = ref.partition("@")
    return address("v", dataset, number, *parts, **query)
