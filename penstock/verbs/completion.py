"""Shell completion of verbs, options and names under a local root, if argcomplete is installed."""

import os
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any

DATASETS = frozenset({"dataset"})
"""Arguments that take a dataset."""
REFS = frozenset({"ref", "a", "b", "give_up"})
"""Arguments that take a dataset or version."""

MOST_ENTRIES = 2000
"""Most log entries to read: the user waits."""


def complete(parser: ArgumentParser) -> None:
    """Answer a completion request of the shell and exit; otherwise do nothing."""
    try:
        import argcomplete
    except ImportError:
        return
    for action in _actions(parser):
        if action.dest in DATASETS | REFS:
            action.completer = _names  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _actions(inner)


def _names(prefix: str, action: Action, parsed_args: Namespace, **_: Any) -> list[str]:
    """Return the names for an argument; none after any error."""
    with suppress(Exception):
        return names(parsed_args.root, prefix, versions=action.dest in REFS)
    return []


def _local(root: str) -> Path:
    path = root.removeprefix("file://")
    if "://" in path:
        raise ValueError(f"{root} is not a local folder")
    return Path(path)


def names(root: str | None, prefix: str, *, versions: bool) -> list[str]:
    """Return the datasets under a local root; after 'photos@' its versions, tags and aliases.

    Reads only the log, without `loader.Root`, whose imports are slow. Raises: OSError; ValueError; errors of a damaged
    log.
    """
    from loader.dataset.log.entries import entry_key, parse
    from loader.dataset.log.snapshots import load_state
    from loader.dataset.log.state import State, fold_all

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
