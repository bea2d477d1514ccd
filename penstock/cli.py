"""`penstock VERB ...`: every verb prints text, or JSON with --json.

Exit status: 0 success; 1 an error in the data or the store; 2 a usage error.
"""

import argparse
import gc
import json
import os
import platform
import re
import shutil
import signal
import sys
import textwrap
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .verbs.verb import Answer, Verb


COMPLETION = """to complete verbs, options and names of a local root in the shell, run
  pip install 'penstock-data[cli]'
  eval "$(register-python-argcomplete penstock)"    (bash, zsh; in ~/.bashrc or ~/.zshrc for good)
  register-python-argcomplete --shell fish penstock | source"""


MANY_OBJECTS = 100_000
"""Allocations between garbage collections; Python's default is 700."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    # Python's frequent collections would take a quarter of an import's time.
    gc.set_threshold(MANY_OBJECTS)
    try:
        problem = foreign_loader_problem()
        if problem is not None:
            print(f"penstock: {problem}", file=sys.stderr)
            return 2
        return _run(argv)
    except KeyboardInterrupt:
        print("penstock: stopped; run the same command to go on", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(argv: Sequence[str] | None) -> int:
    from loader import errors
    from loader.distribution import check_only_distribution

    try:
        check_only_distribution()
    except errors.PackageClash as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2

    from .text import terminal_text
    from .verbs.verb import next_verb, show

    top = parser()
    complete(top)
    arguments = top.parse_args(argv)
    verb: Callable[[argparse.Namespace], Answer] = arguments.verb
    try:
        try:
            body, text, status = verb(arguments)
        except ModuleNotFoundError as error:
            if (extra := find_extra(error.name or "")) is None:
                raise
            raise errors.MissingDependency(
                f"{error.name} is not installed: pip install 'penstock-data[{extra}]'"
            ) from error
        try:
            if arguments.json:
                print(json.dumps(body, indent=2, default=str), flush=True)
            else:
                show(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            print(f"penstock: standard output cannot be written: {error.strerror}", file=sys.stderr)
            _drop_output()
            return 1
        return status
    except errors.PenstockError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        if arguments.json:
            print(json.dumps({"error": type(error).__name__, "message": f"{error}{notes}"}))
        print(terminal_text(f"penstock: {type(error).__name__}: {error}{notes}"), file=sys.stderr)
        if command := next_verb(error, arguments):
            print(terminal_text(f"  next: {command}"), file=sys.stderr)
        if isinstance(error, errors.Corrupt | errors.StoreError) and not isinstance(
            error, errors.InvalidStore
        ):
            return 1
        return 2
    except BrokenPipeError:
        # The reader (head, less) has quit; otherwise Python would complain again when it flushes at exit.
        _drop_output()
        return 0


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_extra(module: str) -> str | None:
    """Return the distribution's first extra that installs a module, or None."""
    from importlib.metadata import requires

    from loader.distribution import DISTRIBUTION

    pattern = re.compile(rf"{re.escape(module.partition('.')[0])}\b.*extra == ['\"](\w+)", re.IGNORECASE)
    return next((match[1] for need in requires(DISTRIBUTION) or () if (match := pattern.match(need))), None)


def foreign_loader_problem() -> str | None:
    """Return an error's text if `import loader` finds another module, such as a loader.py beside train.py."""
    from importlib.util import find_spec  # does not run the module, which may be a training script

    spec = find_spec("loader")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if any(os.path.isfile(os.path.join(place, "dataset", "root.py")) for place in places):
        return None
    origin = "nothing"
    if spec:
        origin = spec.origin or ", ".join(places)
    return f"`import loader` gives {origin}, which is not penstock's; rename that file or folder, or run elsewhere"


def parser() -> "Parser":
    from .verbs import GROUPS, VERBS

    shared = Parser(add_help=False)
    shared.add_argument("--root", default=None, help="path or URL of the root (default: $PENSTOCK_ROOT)")
    shared.add_argument("--json", action="store_true", help="print JSON")
    top = Parser(
        prog="penstock",
        description="Manage dataset versions under a root.",
        epilog=COMPLETION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=version_text())
    several = top.add_subparsers(
        required=True,
        metavar="VERB",
        title="verbs, by user",
        description="\n\n".join(_list_verbs(group, verbs) for group, verbs in GROUPS.items()),
        help="penstock VERB --help lists its arguments",
    )
    for name, verb in VERBS.items():
        _add(
            name,
            verb,
            several.add_parser(name, description=verb.text, parents=_verb_parents(verb, shared)),
            shared,
        )
    return top


class _Once(argparse.Action):
    """Store an option's value; refuse a second, different one, which argparse would let win silently."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        firsts: dict[str, Any] = namespace.__dict__.setdefault(_FIRST_VALUES, {})
        first = firsts.setdefault(self.dest, values)
        if self.option_strings and first is not values and first != values:  # nan is not equal to itself
            raise argparse.ArgumentError(self, f"given twice, {first!r} and {values!r}: give it once")
        setattr(namespace, self.dest, values)


_FIRST_VALUES = "_first_values"
"""Attribute of the namespace: option -> its first value."""


class Parser(argparse.ArgumentParser):
    """Parser whose errors suggest the closest verb or option, and which takes each option once."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if "_ARGCOMPLETE" in os.environ:
            return  # argcomplete runs argparse's own actions only
        for name in (None, "store"):
            self.register("action", name, _Once)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            from loader.keywords import did_you_mean  # imported after `foreign_loader_problem`

            near = did_you_mean(unknown[0].partition("=")[0], self._options(arguments))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return arguments

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from loader.keywords import did_you_mean

            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None

    def _options(self, arguments: argparse.Namespace) -> list[str]:
        parser: argparse.ArgumentParser = self
        for word in getattr(arguments, VERB_PATH, "").split():
            several = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
            parser = several.choices[word]
        return [option for action in parser._actions for option in action.option_strings]


def version_text() -> str:
    """Return "penstock 0.1.0", with Python's version and the package's folder."""
    from importlib.metadata import PackageNotFoundError, version

    from loader.distribution import DISTRIBUTION

    try:
        number = version(DISTRIBUTION)
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        number = "of a checkout"
    return f"penstock {number} (Python {platform.python_version()}, {os.path.dirname(__file__)})"


def _list_verbs(group: str, verbs: "Mapping[str, Verb]") -> str:
    width = max(shutil.get_terminal_size().columns - 4, 40)
    lines = [
        textwrap.fill(f"  {name:<12} {verb.text}", width, subsequent_indent=" " * 15)
        for name, verb in verbs.items()
    ]
    return "\n".join([f"{group}:", *lines])


def _verb_parents(verb: "Verb", shared: "Parser") -> "list[Parser]":
    return [shared] if verb.run else []


VERB_PATH = "verb_path"
"""Attribute of the namespace: the verb's words, such as `checkpoints ls`."""
_OWN_NAMES = frozenset({"verb", VERB_PATH, _FIRST_VALUES, "root", "json"})
"""Attributes of the namespace that every verb has: an argument of such a name would be overwritten."""


def _add(words: str, verb: "Verb", parser: argparse.ArgumentParser, shared: Parser) -> None:
    n_shared = len(parser._actions)
    for add_argument in verb.arguments:
        add_argument(parser)
    for action in parser._actions[n_shared:]:
        if action.dest in _OWN_NAMES:
            raise ValueError(
                f"penstock {words}: the name {action.dest!r} of an argument is the parser's: change it"
            )
    if verb.run:
        parser.set_defaults(verb=verb.run, **{VERB_PATH: words})
        return
    several = parser.add_subparsers(required=True, metavar="VERB")
    for name, inner in verb.verbs.items():
        added = several.add_parser(
            name, parents=_verb_parents(inner, shared), help=inner.text, description=inner.text
        )
        _add(f"{words} {name}", inner, added, shared)


DATASETS = frozenset({"dataset"})
REFS = frozenset({"ref", "a", "b", "give_up"})

MOST_ENTRIES = 2000
"""Log entries read while the user waits."""


def complete(parser: ArgumentParser) -> None:
    """Answer a shell's completion request and exit; otherwise do nothing."""
    try:
        import argcomplete
    except ImportError:
        return
    for action in _actions(parser):
        if action.dest in DATASETS | REFS:
            action.completer = _completions  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _actions(inner)


def _completions(prefix: str, action: Action, parsed_args: Namespace, **_: Any) -> list[str]:
    with suppress(Exception):
        return local_names(parsed_args.root, prefix, versions=action.dest in REFS)
    return []


def _local(root: str) -> Path:
    path = root.removeprefix("file://")
    if "://" in path:
        raise ValueError(f"{root} is not a local folder")
    return Path(path)


def local_names(root: str | None, prefix: str, *, versions: bool) -> list[str]:
    """Return the datasets under a local root; for 'photos@', that dataset's versions, tags and aliases.

    Reads only the log: `loader.Root` imports slowly. Raises: OSError; ValueError; errors of a damaged log.
    """
    from loader.dataset.log.entries import entry_key, parse
    from loader.dataset.log.fold import fold_all
    from loader.dataset.log.snapshots import load_state
    from loader.dataset.log.state import State

    folder = _local(root or os.environ["PENSTOCK_ROOT"])
    hints = sorted((folder / "log").glob("state-*.json"))
    state = load_state(hints[-1].read_bytes()) if hints else State()
    paths = ((n, folder / entry_key(n)) for n in count(state.n + 1))
    there = takewhile(lambda entry: entry[0] <= state.n + MOST_ENTRIES and entry[1].exists(), paths)
    state = fold_all(state, (parse(n, path.read_bytes()) for n, path in there))
    dataset, at, _ = prefix.partition("@")
    if not (versions and at):
        return sorted(name for name, versions_of in state.datasets.items() if versions_of)
    numbers = [str(record.number) for record in state.versions(dataset) if record.retired is None]
    refs = [ref.name for ref in state.refs.values() if ref.dataset == dataset]
    return [f"{dataset}@{name}" for name in ["latest", *numbers, *refs]]
