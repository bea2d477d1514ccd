"""`penstock VERB ...`: every verb prints text, or JSON with --json.

Exit status: 0 done; 1 something is wrong with the data or the store; 2 the caller's mistake.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .verbs.verb import Answer, Verb


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point. Returns the exit status."""
    if problem := foreign_loader():
        print(f"penstock: {problem}", file=sys.stderr)
        return 2
    from loader import errors

    from .card.rendering.escape import terminal_text

    arguments = parser().parse_args(argv)
    verb: Callable[[argparse.Namespace], Answer] = arguments.verb
    try:
        body, text, status = verb(arguments)
        print(json.dumps(body, indent=2, default=str) if arguments.json else terminal_text(text), flush=True)
        return status
    except errors.PenstockError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        if arguments.json:
            print(json.dumps({"error": type(error).__name__, "message": f"{error}{notes}"}))
        print(terminal_text(f"penstock: {type(error).__name__}: {error}{notes}"), file=sys.stderr)
        return (
            1
            if isinstance(error, errors.Corrupt | errors.StoreError)
            and not isinstance(error, errors.InvalidStore)
            else 2
        )
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def foreign_loader() -> str | None:
    """What is wrong when `import loader` gives somebody else's module (a loader.py beside train.py), else None."""
    from importlib.util import find_spec  # looks without running it: it may be a training script

    spec = find_spec("loader")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if any(os.path.isfile(os.path.join(place, "dataset", "root.py")) for place in places):
        return None
    found = (spec.origin or ", ".join(places)) if spec else "nothing"
    return f"`import loader` gives {found}, which is not penstock's; rename that file or folder, or run elsewhere"


def parser() -> argparse.ArgumentParser:
    """All verbs and their arguments."""
    from .verbs import VERBS

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--root", default=None, help="path or URL of the root (default: $PENSTOCK_ROOT)")
    shared.add_argument("--json", action="store_true", help="print JSON")
    top = argparse.ArgumentParser(prog="penstock", description="Look after dataset versions under a root.")
    _add(top, VERBS, shared)
    return top


def _add(
    parser: argparse.ArgumentParser, verbs: "Mapping[str, Verb]", shared: argparse.ArgumentParser
) -> None:
    several = parser.add_subparsers(required=True, metavar="VERB")
    for name, verb in verbs.items():
        one = several.add_parser(
            name, parents=[shared] if verb.run else [], help=verb.text, description=verb.text
        )
        verb.arguments(one)
        if verb.run:
            one.set_defaults(verb=verb.run)
        else:
            _add(one, verb.verbs, shared)
