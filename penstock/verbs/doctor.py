"""`penstock doctor URL`."""

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from .verb import Answer, Verb


def option(text: str) -> tuple[list[str], Any]:
    """'region=eu-west-1', 'anon=true', 'fsspec.key=...': (names from the outside in, value; JSON where it is that)."""
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ArgumentTypeError(f"{name!r}: write NAME=VALUE, such as region=eu-west-1 or fsspec.anon=true")
    try:
        return name.split("."), json.loads(value)
    except ValueError:
        return name.split("."), value


def options_of(given: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """What `loader.Root(url, options=...)` takes."""
    made: dict[str, Any] = {}
    for names, value in given:
        inner = made
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = value
    return made


def arguments(parser: ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("url", nargs="?", help="path or URL; a root need not be there (default: --root)")
    parser.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="as loader.Root(options=) takes them, again and again; keys better from the environment or a profile",
    )
    parser.add_argument(
        "--quick", action="store_true", help="no listing of many keys, no speeds: what must hold alone"
    )


def run(arguments: Namespace) -> Answer:
    """Exit status 1 when anything fails."""
    from ..doctor.examine import examine

    report = examine(arguments.url or arguments.root, options_of(arguments.option), quick=arguments.quick)
    return report.to_json(), report.to_text(), int(report.failed)


VERB = Verb(
    text="can a store be trusted with a root, how fast is it, what should be set; writes a little and removes it",
    run=run,
    arguments=arguments,
)
