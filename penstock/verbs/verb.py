"""Verbs: their type, shared arguments, answers and tables."""

import json
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import loader
from loader import errors
from loader.errors import FieldNotFound, InvalidRuntime, InvalidStore
from loader.storage.spec import RUNTIME_OPTIONS, is_secret

from ..text import line_text, terminal_text

if TYPE_CHECKING:
    from ..compute.cluster import Cluster


HASH_CHARS = 18
"""Characters of a version's id, or of a plan's hash, in a table. JSON has them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    form: Sequence[str]
    """Columns' format strings in plain text; '>' aligns numbers right."""
    header: Sequence[str]
    """Names of the columns."""
    rows: Sequence[Sequence[object]]
    """Cells in column order; a row may end early."""
    titled: bool = True
    """True if plain text has the header."""

    def __str__(self) -> str:
        rows = list(self.rows)
        if self.titled:
            rows.insert(0, self.header)
        lines = []
        for row in rows:
            cells = zip(self.form, row, strict=False)  # a row may end early
            lines.append("".join(form.format(_cell(cell)) for form, cell in cells))
        return "\n".join(lines)


def _cell(cell: object) -> object:
    """Return a cell whose text cannot begin another row."""
    return line_text(cell) if isinstance(cell, str) else cell


Text = str | Sequence[str | Table]
"""Lines and tables, in order."""


def show(text: Text) -> None:
    """Print text. On a terminal, rich draws the tables, unless NO_COLOR is set or TERM is dumb."""
    blocks: Sequence[str | Table] = text
    if isinstance(text, str):
        blocks = [text]
    # Pipes get plain text: scripts parse it, and rich wraps at 80 columns there.
    has_tables = any(isinstance(block, Table) for block in blocks)
    is_drawn = sys.stdout.isatty() and has_tables and _draw_by_rich(blocks)
    if not is_drawn:
        print(terminal_text("\n".join(map(str, blocks))), flush=True)


def _draw_by_rich(blocks: Sequence[str | Table]) -> bool:
    """Print blocks with rich; return False, and print nothing, without rich or on a terminal that it does not suit."""
    try:
        import rich.box
        import rich.console
        import rich.table
        import rich.text
    except ImportError:
        return False
    # Keys and reasons may contain brackets or :words:, which rich would read as markup or emoji.
    console = rich.console.Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if console.no_color or console.is_dumb_terminal:
        return False
    for block in blocks:
        if isinstance(block, str):
            print(terminal_text(block), flush=True)
            continue
        shown = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name, form in zip(block.header, block.form, strict=True):
            shown.add_column(
                # Fold, not crop: a cut key cannot be pasted into the next command.
                rich.text.Text(name),
                justify="right" if ">" in form else "left",
                overflow="fold",
            )
        for row in block.rows:
            shown.add_row(*(rich.text.Text(line_text(cell)) for cell in row))
        console.print(shown)
    return True


T = TypeVar("T")
Answer = tuple[Any, Text, int]
"""JSON body, text, exit status."""


class ShownReport(Protocol):
    """A report that prints as JSON or text."""

    def to_json(self) -> Any: ...

    def to_text(self) -> str: ...


def report_answer(report: ShownReport, failed: object = False) -> Answer:
    """Exit with 1 if `failed`."""
    return report.to_json(), report.to_text(), int(bool(failed))


Argument = Callable[[Any], object]
"""Adds an argument to a parser, or to a group of one."""


def argument(name: str, text: str | None = None, **settings: Any) -> Argument:
    """Return an argument such as "ref" or "--price USD". settings: of `add_argument`."""
    name, _, metavar = name.partition(" ")
    if metavar:
        settings["metavar"] = metavar
    return partial(_add, name, help=text, **settings)


def flag(name: str, text: str, **settings: Any) -> Argument:
    return argument(name, text, action="store_true", **settings)


def list_option(name: str, text: str, **settings: Any) -> Argument:
    """Return an option whose values are collected in a list."""
    return argument(name, f"{text}; may be repeated", action="append", default=[], **settings)


def exclusive_options(*arguments: Argument) -> Argument:
    """Return arguments of which a command has at most one."""

    def add(parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_argument in arguments:
            add_argument(group)

    return add


def _add(name: str, parser: ArgumentParser, **settings: Any) -> None:
    parser.add_argument(name, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb, or a group such as `penstock lease`."""

    text: str
    """Help text."""
    arguments: Sequence[Argument] = ()
    """In the order of the help."""
    run: Callable[[Namespace], Answer] | None = None
    """Returns the answer; None for a group."""
    verbs: Mapping[str, "Verb"] = field(default_factory=dict)
    """Name -> verb, for a group."""


def verb(text: str, *arguments: Argument) -> Callable[[Callable[[Namespace], Answer]], Verb]:
    """Make a function that returns an answer a verb."""
    return lambda run: Verb(text=text, arguments=arguments, run=run)


REF = argument("ref", "e.g. photos@3")
WORLD = (argument("--world", "world size", type=int), argument("--rank", type=int))
FIELDS = argument(
    "--fields A,B",
    "fields of one kind of sample; other samples are left out (default: the fields that all samples have)",
)


def cluster_argument(text: str) -> Argument:
    return argument("--cluster FILE", text)


def parse_cluster(arguments: Namespace) -> "Cluster | None":
    """Return the cluster of --cluster, or None. Raises: InvalidCluster; MissingDependency."""
    if arguments.cluster is None:
        return None
    from ..compute.cluster import read_cluster

    return read_cluster(arguments.cluster)


def workers_argument(threads: int = 4) -> Argument:
    return argument("--workers N", f"threads (default: {threads})", type=int, default=threads)


def argument_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let argparse show `parse`'s ValueError."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def key_lines(option: str, file: str | None) -> Iterator[str]:
    """Yield a file's non-empty lines; "-" is standard input, None no file. Raises: InvalidRuntime."""
    if file is None:
        return
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        lines = data.decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRuntime(
            f"{option} {file} cannot be read as UTF-8 text ({error}); name a file with a key per line"
        ) from error
    # Split at \n only: splitlines() would also split at characters that a key may contain.
    yield from (key for line in lines if (key := line.removesuffix("\r")))


def choose_fields(version: "loader.Version", option: str | None) -> tuple[list[str], bool]:
    """Return the fields of --fields, and whether samples that lack them are left out.

    The default is the fields that all samples have. Raises: FieldNotFound.
    """
    whole = fields_of_all(version)
    if not option and whole:
        return whole, False
    fields = [name for name in (option or "").split(",") if name]
    groups = {version.group_of(name) for name in fields}
    if fields and set(fields) <= set(whole):
        return fields, False
    present_kinds = kinds(version)
    if fields and any(groups <= kind.groups for kind in present_kinds):
        return fields, True
    if not fields and len(present_kinds) == 1:  # all samples of the other kinds are excluded
        return list(present_kinds[0].fields), True
    wrong = f"no sample of {version.name} has all of {', '.join(fields)}"
    if not fields:
        wrong = (
            f"{version.name} has samples of {len(present_kinds)} kinds, and no field that all of them have"
        )
    options = (f"  {kind.option}  # {kind.n_samples} of {len(version)} samples" for kind in present_kinds)
    raise FieldNotFound("\n".join([f"{wrong}; add the fields of one kind:", *options]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKind:
    """Samples with equal groups."""

    groups: frozenset[str]
    """Names of these groups."""
    fields: Sequence[str]
    """Fields of these groups, sorted."""
    n_samples: int
    """Live samples with all these fields."""

    @property
    def option(self) -> str:
        """The argument that selects these samples."""
        return f"--fields {shlex.quote(','.join(self.fields))}"


def kinds(version: "loader.Version") -> list[SampleKind]:
    """Return a version's kinds of samples, largest first."""
    parts = version.parts
    groups = version.manifest["groups"]
    # bool [parts] per group: a part either has a group or none of it.
    has = {name: parts.has_group(name) for name in groups}
    samples: Counter[frozenset[str]] = Counter()  # groups of a part -> live samples of such parts
    # Differences of int64 [parts + 1] first ordinals: live samples of each part.
    for position, n in enumerate(parts.first_ordinal[1:] - parts.first_ordinal[:-1]):
        samples[frozenset(name for name in groups if has[name][position])] += int(n)
    present_kinds = []
    for own_groups, n in samples.items():
        if not n:
            continue
        fields: list[str] = []
        for name in own_groups:
            fields += groups[name]["field_nbytes"]
        # Parts with more groups have these fields too.
        n_samples = sum(n_others for others, n_others in samples.items() if own_groups <= others)
        kind = SampleKind(groups=own_groups, fields=sorted(fields), n_samples=n_samples)
        present_kinds.append(kind)
    return sorted(present_kinds, key=lambda kind: (-kind.n_samples, kind.fields))


def fields_of_all(version: "loader.Version") -> list[str]:
    """Return the fields that every part has; others would leave samples out."""
    groups = version.manifest["groups"].values()
    whole = [group for group in groups if group["n_parts"] == version.manifest["n_parts"]]
    return [field for group in whole for field in group["field_nbytes"]]


def option(text: str) -> tuple[list[str], Any]:
    """Return the nested names and value of an option such as 'fsspec.anon=true'.

    JSON values are parsed, but numbers only for penstock's own options and fsspec's. Raises: ArgumentTypeError.
    """
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ArgumentTypeError(f"{name!r}: write NAME=VALUE, such as region=eu-west-1 or fsspec.anon=true")
    names = name.split(".")
    return names, _value(names, value)


def _value(names: list[str], text: str) -> Any:
    """Return an option's value: of JSON, or the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # A password such as 0123 or true is text. Only a nested object of credentials is parsed.
    if is_secret(names[-1]):
        return value if isinstance(value, dict) else text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An account number or a bucket named 2024 must not become an int.
    if is_number and names[0] != "fsspec" and names[0] not in RUNTIME_OPTIONS:
        return text
    return value


def store_options(name: str, whose: str) -> Argument:
    return list_option(f"{name} NAME=VALUE", f"option of {whose}, as in loader.Root(options=)", type=option)


def parse_options(pairs: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """Return options for `loader.Root(url, options=...)`.

    Raises: InvalidStore if a name has both a value and names below it.
    """
    options: dict[str, Any] = {}
    for names, value in pairs:
        inner = options  # the object that the last name belongs to
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise _both(names, name)
        if isinstance(inner.get(names[-1]), dict):
            raise _both(names, names[-1])
        inner[names[-1]] = value
    return options


def _both(names: list[str], name: str) -> InvalidStore:
    option_name = ".".join(names)
    message = f"option {option_name}: {name!r} has both a value and names below it; give one of them"
    return InvalidStore(message, what=f"option {option_name}", given=name)


READ_VERSIONS = frozenset({"show", "diff", "order", "explain", "card", "bench"})
"""Verbs that only read versions, whose damage is a version's."""

OTHER_PLACES = ("url", "source", "mirror", "rows", "raw_below")
"""Arguments that name another store, which may have failed."""


def next_verb(error: errors.PenstockError, arguments: Namespace) -> str | None:
    """Return a command to paste; None if no verb helps, or if the error's text names the verb already."""
    command, _, comment = _command(error, arguments).partition("  #")  # --root goes between the two
    verb_name = " ".join(command.split()[:2])  # such as "penstock verify"
    if not command or verb_name in str(error):
        return None
    if arguments.root:
        command += f" --root {shlex.quote(arguments.root)}"
    if comment:
        command += f"  #{comment}"
    return command


def _command(error: errors.PenstockError, arguments: Namespace) -> str:
    """Return a command without --root, and perhaps a comment after two spaces and #; "" if no verb helps."""
    # References and checkpoints are always the root's, even if the command names another store too.
    match error:
        case errors.VersionNotFound() | errors.VersionRetired() if error.dataset is not None:
            return f"penstock ls {error.dataset}".rstrip()
        case errors.CheckpointNotFound() if arguments.verb_path != "checkpoints ls":
            return "penstock checkpoints ls"
    if any(getattr(arguments, name, None) for name in OTHER_PLACES):
        return ""
    match error:
        case errors.CorruptLog() if arguments.verb_path != "repair":
            return "penstock repair --by NAME  # lists what it would write; --apply writes it"
        case errors.DecodeFailed() | errors.TooManyCorrupt() | errors.CorruptLog():
            return ""
        case errors.Corrupt() | errors.ObjectNotFound() if arguments.verb_path in READ_VERSIONS:
            return "penstock verify  # --full reads every byte"
        case errors.Transient() | errors.Throttled() | errors.Forbidden() if arguments.verb_path != "doctor":
            return "penstock doctor  # writes a little and removes it"
    return ""


def parse_count(text: str) -> int:
    """Return an argument's whole number, 0 or more. Raises: ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentTypeError(f"{text!r}; accepted: a whole number, 0 or more")
    return int(text)
