"""`penstock repair`."""

from argparse import ArgumentParser, Namespace

import loader
from loader.storage import open_store

from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--by", required=True, help="who repairs: a person, a ticket; it is put on record")
    parser.add_argument("--mirror", help="path or URL of a copy of the root, to compare with")
    parser.add_argument("--believe", choices=("stored", "next"), help="which of two readings is right")
    parser.add_argument("--apply", action="store_true", help="do it; without it, only say what would be done")


def run(arguments: Namespace) -> Answer:
    """Repair the log, or say what would be done. Exit status 1 where something is to be done and was not."""
    from ..upkeep.repair import apply_repair, plan_repair

    store = loader.Root(arguments.root).alone.store
    mirror = open_store(arguments.mirror) if arguments.mirror else None
    steps = plan_repair(store, by=arguments.by, mirror=mirror, believe=arguments.believe)
    lines = [f"{step.key}: {step.why}" for step in steps]
    if not steps:
        lines.append("the log is whole: nothing to repair")
    elif arguments.apply:
        state = apply_repair(store, steps, by=arguments.by)
        lines.append(f"done: {store.url} has {state.n} log entries and reads from the first to the last")
    else:
        lines.append(f"{len(steps)} objects to write; nothing was written: --apply does it")
    body = {
        "root": store.url,
        "steps": [{"key": step.key, "n": step.n, "why": step.why} for step in steps],
        "applied": bool(steps and arguments.apply),
    }
    return body, "\n".join(lines), 1 if steps and not arguments.apply else 0


VERB = Verb(text="mend a log of which an entry was damaged or misread", run=run, arguments=arguments)
