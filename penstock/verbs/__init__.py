"""The verbs of `penstock`, a file each. A new one is its file and a line here."""

from . import (
    annotate,
    approve,
    batch,
    bench,
    card,
    checkpoints,
    diff,
    doctor,
    exclude,
    explain,
    gc,
    hold,
    lease,
    ls,
    migrate,
    order,
    repair,
    retire,
    seen,
    show,
    takedown,
    trail,
    verify,
    view,
)
from .verb import Verb

VERBS: dict[str, Verb] = {
    "ls": ls.VERB,
    "show": show.VERB,
    "diff": diff.VERB,
    "verify": verify.VERB,
    "repair": repair.VERB,
    "order": order.VERB,
    "view": view.VERB,
    "batch": batch.VERB,
    "explain": explain.VERB,
    "seen": seen.VERB,
    "card": card.VERB,
    "bench": bench.VERB,
    "annotate": annotate.VERB,
    "exclude": exclude.VERB,
    "approve": approve.VERB,
    "doctor": doctor.VERB,
    "retire": retire.VERB,
    "lease": lease.VERB,
    "hold": hold.VERB,
    "checkpoints": checkpoints.VERB,
    "trail": trail.VERB,
    "gc": gc.VERB,
    "takedown": takedown.VERB,
    "migrate": migrate.VERB,
}

GROUPS: dict[str, tuple[str, ...]] = {
    "train": ("ls", "show", "order", "view", "batch", "explain", "seen", "bench", "checkpoints", "trail"),
    "build datasets": ("diff", "card", "annotate", "exclude", "approve", "retire"),
    "operate": ("doctor", "verify", "repair", "migrate", "lease", "hold", "gc", "takedown"),
}
"""User -> verbs, as `penstock --help` shows them; each verb is in one group."""
