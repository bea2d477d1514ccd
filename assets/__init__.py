"""The lifecycle of data as Dagster assets: land, cut into samples, publish. One stage per file."""

from loader.errors import InvalidSpec


def invalid_option(name: str, value: object, accepted: str, owner: str = "") -> InvalidSpec:
    """Return the error for an option of a spec. owner: what has the option, such as "source 'web'"."""
    shown = repr(value)
    if isinstance(value, int | float):
        shown = str(value)  # the repr of a numpy number names its type
    message = f"{name}={shown}; accepted: {accepted}"
    if owner:
        message = f"{owner}: {message}"
    return InvalidSpec(message, what=name, where=owner or None, given=value, accepted=accepted)
