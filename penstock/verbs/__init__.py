"""The verbs of `penstock`. A new verb needs a line here."""

from . import (
    checkpoints,
    curation,
    formats,
    gc,
    health,
    jobs,
    migrate,
    node,
    order,
    steps,
    takedown,
    trail,
    train,
    usage,
    versions,
    view,
)
from .verb import Verb

GROUPS: dict[str, dict[str, Verb]] = {
    "train": {
        "ls": versions.run_ls,
        "show": versions.run_show,
        "order": order.run_order,
        "order-of": order.ORDER_OF,
        "plans": order.PLANS,
        "view": view.run_view,
        "tui": view.run_tui,
        "batch": steps.run_batch,
        "explain": steps.run_explain,
        "seen": steps.run_seen,
        "bench": versions.run_bench,
        "checkpoints": checkpoints.VERB,
        "trail": trail.VERB,
        "train": train.VERB,
    },
    "build datasets": {
        "register": formats.run_register,
        "import": formats.run_import,
        "seal": formats.run_seal,
        "adopt": formats.run_adopt,
        "diff": versions.run_diff,
        "digest": versions.run_digest,
        "card": versions.run_card,
        "annotate": curation.run_annotate,
        "exclude": curation.run_exclude,
        "approve": curation.run_approve,
        "retire": gc.run_retire,
        "export": formats.run_export,
    },
    "operate": {
        "doctor": health.run_doctor,
        "verify": health.run_verify,
        "jobs": jobs.VERB,
        "repair": health.run_repair,
        "migrate": migrate.VERB,
        "lease": gc.LEASE,
        "hold": gc.HOLD,
        "usage": usage.usage,
        "node": node.VERB,
        "gc": gc.VERB,
        "takedown": takedown.VERB,
    },
}
"""Kind of user -> name -> verb, as in `penstock --help`."""
VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}
