"""What a verb of the command line is, and what several verbs take."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import loader

Answer = tuple[Any, str, int]
"""What a verb gives: a body that JSON can hold, the same as text, and the exit status."""


def no_arguments(parser: ArgumentParser) -> None:
    """Takes none but --root and --json, which every verb takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """`run` answers; or `verbs` has verbs of its own: `penstock lease ls`."""

    text: str
    arguments: Callable[[ArgumentParser], None] = no_arguments
    run: Callable[[Namespace], Answer] | None = None
    verbs: Mapping[str, "Verb"] = field(default_factory=dict)


def add_world(parser: ArgumentParser) -> None:
    """--world and --rank."""
    parser.add_argument("--world", type=int, default=None, help="world size")
    parser.add_argument("--rank", type=int, default=None)


def fields_of_all(version: "loader.Version") -> list[str]:
    """Fields of the groups that every part has: those of another would leave samples out."""
    groups = version.manifest["groups"].values()
    whole = [group for group in groups if group["n_parts"] == version.manifest["n_parts"]]
    return [field for group in whole for field in group["field_nbytes"]]
