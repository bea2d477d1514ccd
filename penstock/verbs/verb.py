"""The type of a verb of the command line, and arguments of several verbs."""

import json
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import loader
from loader.errors import FieldNotFound, InvalidRuntime, InvalidStore
from loader.storage.options import RUNTIME_OPTIONS
from loader.storage.spec import is_secret

from .table import Text

if TYPE_CHECKING:
    from ..compute.cluster import Cluster

T = TypeVar("T")
Answer = tuple[Any, Text, int]
"""The answer of a verb: a body that JSON can hold, the same as text, and the exit status."""


def no_arguments(parser: ArgumentParser) -> None:
    """Add no arguments but --root and --json, which every verb takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb of the command line, or a group of verbs such as `penstock lease`."""

    text: str
    """Help text."""
    arguments: Callable[[ArgumentParser], None] = no_arguments
    """Adds the verb's arguments to its parser."""
    run: Callable[[Namespace], Answer] | None = None
    """Answers; None for a group."""
    verbs: Mapping[str, "Verb"] = field(default_factory=dict)
    """Name -> verb of a group; empty for a verb that runs."""


def cluster_argument(parser: ArgumentParser, text: str) -> None:
    """Add --cluster. text: its help text."""
    parser.add_argument("--cluster", metavar="FILE", help=text)


def cluster_of(arguments: Namespace) -> "Cluster | None":
    """Return the cluster of --cluster; None without it. Raises: InvalidCluster; MissingDependency."""
    if arguments.cluster is None:
        return None
    from ..compute.cluster import read_cluster

    return read_cluster(arguments.cluster)


def read_by(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of texts for argparse, which hides the text of a ValueError."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def add_world(parser: ArgumentParser) -> None:
    """Add --world and --rank."""
    parser.add_argument("--world", type=int, default=None, help="world size")
    parser.add_argument("--rank", type=int, default=None)


def add_fields(parser: ArgumentParser) -> None:
    """Add --fields."""
    parser.add_argument(
        "--fields",
        default=None,
        metavar="A,B",
        help="fields of one kind of sample; other samples are left out (default: the fields that all samples have)",
    )


def key_lines(option: str, file: str | None) -> Iterator[str]:
    """Yield the lines of an option's file that are not empty; "-" is standard input, None no file.

    Raises: InvalidRuntime where it cannot be read as UTF-8.
    """
    if file is None:
        return
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        lines = data.decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRuntime(
            f"{option} {file} cannot be read as UTF-8 text ({error}); name a file with a key per line"
        ) from error
    yield from (key for line in lines if (key := line.removesuffix("\r")))


def choose_fields(version: "loader.Version", option: str | None) -> tuple[list[str], bool]:
    """Return the fields of --fields, and whether samples without them are left out.

    Without --fields they are the fields that all samples have.

    Raises: FieldNotFound, with what --fields accepts.
    """
    whole = fields_of_all(version)
    if not option and whole:
        return whole, False
    fields = [name for name in (option or "").split(",") if name]
    groups = {version.group_of(name) for name in fields}
    if fields and set(fields) <= set(whole):
        return fields, False
    there = kinds(version)
    if fields and any(groups <= kind.groups for kind in there):
        return fields, True
    if not fields and len(there) == 1:  # all samples of the other kinds were excluded
        return list(there[0].fields), True
    wrong = f"no sample of {version.name} has all of {', '.join(fields)}"
    if not fields:
        wrong = f"{version.name} has samples of {len(there)} kinds, and no field that all of them have"
    options = (f"  {kind.option}  # {kind.n_samples} of {len(version)} samples" for kind in there)
    raise FieldNotFound("\n".join([f"{wrong}; add the fields of one kind:", *options]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Samples with the same groups."""

    groups: frozenset[str]
    """Their groups."""
    fields: Sequence[str]
    """Fields of these groups, sorted."""
    n_samples: int
    """Live samples that have all of these fields, of other kinds too."""

    @property
    def option(self) -> str:
        """The argument that selects them."""
        return f"--fields {shlex.quote(','.join(self.fields))}"


def kinds(version: "loader.Version") -> list[Kind]:
    """Return the kinds of samples of a version, the most samples first."""
    parts, groups = version.parts, version.manifest["groups"]
    has = {name: parts.has_group(name) for name in groups}
    samples: Counter[frozenset[str]] = Counter()
    for position, n in enumerate(parts.first_ordinal[1:] - parts.first_ordinal[:-1]):
        samples[frozenset(name for name in groups if has[name][position])] += int(n)
    of_version = [
        Kind(
            groups=its_groups,
            fields=sorted(field for name in its_groups for field in groups[name]["field_nbytes"]),
            n_samples=sum(n for theirs, n in samples.items() if its_groups <= theirs),
        )
        for its_groups, n in samples.items()
        if n
    ]
    return sorted(of_version, key=lambda kind: (-kind.n_samples, kind.fields))


def fields_of_all(version: "loader.Version") -> list[str]:
    """Return the fields of the groups that every part has: a field of another group would leave samples out."""
    groups = version.manifest["groups"].values()
    whole = [group for group in groups if group["n_parts"] == version.manifest["n_parts"]]
    return [field for group in whole for field in group["field_nbytes"]]


def option(text: str) -> tuple[list[str], Any]:
    """Return the names, from the outside in, and the value of an option such as 'fsspec.anon=true'.

    JSON values are parsed. Only penstock's own options and fsspec's may be numbers; a key of digits is text.

    Raises: ArgumentTypeError.
    """
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ArgumentTypeError(f"{name!r}: write NAME=VALUE, such as region=eu-west-1 or fsspec.anon=true")
    names = name.split(".")
    return names, _value(names, value)


def _value(names: list[str], text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if is_secret(names[-1]):
        return value if isinstance(value, dict) else text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and names[0] != "fsspec" and names[0] not in RUNTIME_OPTIONS else value


def options_of(pairs: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """Return the options that `loader.Root(url, options=...)` takes.

    Raises: InvalidStore for a name that has a value, and names below it.
    """
    options: dict[str, Any] = {}
    for names, value in pairs:
        inner = options
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise InvalidStore(_both(names, name))
        if isinstance(inner.get(names[-1]), dict):
            raise InvalidStore(_both(names, names[-1]))
        inner[names[-1]] = value
    return options


def _both(names: list[str], name: str) -> str:
    return f"option {'.'.join(names)}: {name!r} has both a value and names below it; give one of them"
