"""`penstock doctor URL`."""

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from loader.errors import InvalidStore
from loader.storage.options import RUNTIME_OPTIONS
from loader.storage.spec import is_secret

from .verb import Answer, Verb


def option(text: str) -> tuple[list[str], Any]:
    """Return the names, from the outside in, and the value of an option such as 'fsspec.anon=true'.

    A value that is JSON is parsed. Numbers are those of our own options and of fsspec's; a key of digits is text.

    Raises: ArgumentTypeError.
    """
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ArgumentTypeError(f"{name!r}: write NAME=VALUE, such as region=eu-west-1 or fsspec.anon=true")
    names = name.split(".")
    return names, _value(names, value)


def _value(names: list[str], text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if is_secret(names[-1]):
        return found if isinstance(found, dict) else text
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return text if is_number and names[0] != "fsspec" and names[0] not in RUNTIME_OPTIONS else found


def options_of(given: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """Return the options that `loader.Root(url, options=...)` takes.

    Raises: InvalidStore for a name that has a value, and names below it.
    """
    made: dict[str, Any] = {}
    for names, value in given:
        inner = made
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise InvalidStore(_both(names, name))
        if isinstance(inner.get(names[-1]), dict):
            raise InvalidStore(_both(names, names[-1]))
        inner[names[-1]] = value
    return made


def _both(names: list[str], name: str) -> str:
    return (
        f"option {'.'.join(names)}: {name!r} is given with a value and with names below it; give one of them"
    )


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("url", nargs="?", help="path or URL; a root need not be there (default: --root)")
    parser.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="as loader.Root(options=) takes them, again and again; keys better from the environment or a profile",
    )
    parser.add_argument("--quick", action="store_true", help="skip the listing of many keys")


def run(arguments: Namespace) -> Answer:
    """Examine a store. Exit status 1 when anything fails."""
    from ..upkeep.doctor.examine import examine

    report = examine(arguments.url or arguments.root, options_of(arguments.option), quick=arguments.quick)
    return report.to_json(), report.to_text(), int(report.failed)


VERB = Verb(
    text="check whether a store can hold a root; writes a little and removes it",
    run=run,
    arguments=arguments,
)
