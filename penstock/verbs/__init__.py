"""The verbs of `penstock`, a file each. A new one is its file and a line here."""

from . import (
    annotate,
    approve,
    bench,
    card,
    checkpoints,
    diff,
    doctor,
    explain,
    gc,
    hold,
    lease,
    ls,
    migrate,
    order,
    retire,
    show,
    takedown,
    verify,
)
from .verb import Verb

VERBS: dict[str, Verb] = {
    "ls": ls.VERB,
    "show": show.VERB,
    "diff": diff.VERB,
    "verify": verify.VERB,
    "order": order.VERB,
    "explain": explain.VERB,
    "card": card.VERB,
    "bench": bench.VERB,
    "annotate": annotate.VERB,
    "approve": approve.VERB,
    "doctor": doctor.VERB,
    "retire": retire.VERB,
    "lease": lease.VERB,
    "hold": hold.VERB,
    "checkpoints": checkpoints.VERB,
    "gc": gc.VERB,
    "takedown": takedown.VERB,
    "migrate": migrate.VERB,
}
