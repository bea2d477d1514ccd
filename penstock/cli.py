"""`penstock VERB ...`: every verb prints text, or JSON with --json.

Exit status: 0 done; 1 something is wrong with the data or the store; 2 the caller's mistake.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point. Returns the exit status."""
    if problem := foreign_loader():
        print(f"penstock: {problem}", file=sys.stderr)
        return 2
    from loader import errors

    arguments = parser().parse_args(argv)
    verb: Callable[[argparse.Namespace], tuple[Any, str, int]] = arguments.verb
    try:
        body, text, status = verb(arguments)
        print(json.dumps(body, indent=2, default=str) if arguments.json else text, flush=True)
        return status
    except errors.PenstockError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        if arguments.json:
            print(json.dumps({"error": type(error).__name__, "message": f"{error}{notes}"}))
        print(f"penstock: {type(error).__name__}: {error}{notes}", file=sys.stderr)
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
    from . import verbs

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--root", default=None, help="path or URL of the root (default: $PENSTOCK_ROOT)")
    shared.add_argument("--json", action="store_true", help="print JSON")
    top = argparse.ArgumentParser(prog="penstock", description="Look after dataset versions under a root.")
    several = top.add_subparsers(required=True, metavar="VERB")

    def add(
        name: str, run: Callable[[argparse.Namespace], tuple[Any, str, int]], text: str
    ) -> argparse.ArgumentParser:
        one = several.add_parser(name, parents=[shared], help=text, description=text)
        one.set_defaults(verb=run)
        return one

    add("ls", verbs.ls, "datasets and versions").add_argument("dataset", nargs="?", help="only this dataset")
    add("show", verbs.show, "one version: fields, groups, columns, parts").add_argument(
        "ref", help="e.g. photos@3"
    )
    two = add("diff", verbs.diff, "what changes from one version to another")
    two.add_argument("a", help="e.g. photos@2")
    two.add_argument("b", help="e.g. photos@3")
    one = add("verify", verbs.verify, "check stored hashes, counts and references")
    one.add_argument("ref")
    one.add_argument("--full", action="store_true", help="read every byte")
    one = add("order", verbs.order, "the keys of a step's batch")
    one.add_argument("ref")
    one.add_argument("--step", type=int, required=True)
    one.add_argument("--batch", type=int, required=True, help="global batch size")
    one.add_argument("--seed", type=int, default=0)
    _add_world(one)
    one = add("explain", verbs.explain, "from a step of a saved plan back to its bytes and raw objects")
    one.add_argument("plan", help="hash of a plan saved under the root (p-...)")
    one.add_argument("--step", type=int, required=True)
    one.add_argument("--slot", type=int, default=None, help="one slot, counted from 0")
    _add_world(one)
    one = add(
        "card", verbs.card, "the dataset card of a version: counts, licences, where it comes from, examples"
    )
    one.add_argument("ref")
    one.add_argument("--html", default=None, metavar="FILE", help="write it as one HTML file")
    one.add_argument("--into", default=None, metavar="FOLDER", help="write it as JSON, Markdown and HTML")
    one.add_argument("--save", action="store_true", help="write it into the root, where there is none yet")
    one.add_argument(
        "--examples", type=int, default=None, metavar="N", help="samples of each kind; 0 reads no media"
    )
    one = add(
        "bench", verbs.bench, "how fast a version can be loaded here, which stage limits, what to change"
    )
    one.add_argument("ref")
    one.add_argument(
        "--fields", default=None, metavar="A,B", help="fields to load (default: those all samples have)"
    )
    one.add_argument("--batch", type=int, default=64, metavar="N", help="samples in a batch (default: 64)")
    one.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)")
    one.add_argument("--workers", type=int, default=None, metavar="N", help="threads (default: one per core)")
    one = add("retire", verbs.retire, "take a version out of use")
    one.add_argument("ref")
    one.add_argument("--reason", required=True)
    one = add("lease", verbs.lease, "who is reading which version")
    one.add_argument("what", choices=["ls"])
    return top


def _add_world(one: argparse.ArgumentParser) -> None:
    one.add_argument("--world", type=int, default=None, help="world size")
    one.add_argument("--rank", type=int, default=None)
