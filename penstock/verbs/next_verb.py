"""The verb that helps after an error, decided by the class of the error, for all verbs."""

import shlex
from argparse import Namespace

from loader import errors

READ_VERSIONS = frozenset({"show", "diff", "order", "explain", "card", "bench"})
"""Verbs that read versions of the root and nothing else: damage that they find is a version's."""

OTHER_PLACES = ("url", "source", "mirror", "rows", "raw_below")
"""Arguments that name a place beside the root, which may be the place that failed."""


def next_verb(error: errors.PenstockError, arguments: Namespace) -> str | None:
    """Return a command that can be pasted, None where no verb helps or the message names it already."""
    command, _, comment = _command(error, arguments).partition("  #")
    if not command or " ".join(command.split()[:2]) in str(error):
        return None
    root = f" --root {shlex.quote(arguments.root)}" if arguments.root else ""
    return f"{command}{root}" + (f"  #{comment}" if comment else "")


def _command(error: errors.PenstockError, arguments: Namespace) -> str:
    match error:
        case errors.VersionNotFound() | errors.VersionRetired() if error.dataset is not None:
            return f"penstock ls {error.dataset}".rstrip()
        case errors.CheckpointNotFound() if arguments.words != "checkpoints ls":
            return "penstock checkpoints ls"
    if any(getattr(arguments, name, None) for name in OTHER_PLACES):
        return ""
    match error:
        case errors.CorruptLog() if arguments.words != "repair":
            return "penstock repair --by NAME  # lists what it would write; --apply writes it"
        case errors.DecodeFailed() | errors.TooManyCorrupt() | errors.CorruptLog():
            return ""
        case errors.Corrupt() | errors.ObjectNotFound() if arguments.words in READ_VERSIONS:
            return "penstock verify  # --full reads every byte"
        case errors.Transient() | errors.Throttled() | errors.Forbidden() if arguments.words != "doctor":
            return "penstock doctor  # writes a little and removes it"
    return ""
