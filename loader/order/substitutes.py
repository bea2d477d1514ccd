"""What a slot holds instead of a corrupt sample: planned too, so that every run agrees on it."""

import numpy as np

from .content import PlanContent
from .keys import key
from .slots import ordinals_at

MAX_ATTEMPTS = 8  # then the run stops: eight corrupt samples in a row are not bad luck


def substitute(plan: PlanContent, source: int, position: int, attempt: int) -> tuple[int, int]:
    """(view ordinal, version ordinal) of the sample that stands in for a corrupt one.

    source: index into plan.source_names. position: i_k of the slot. attempt: 1, 2, ... MAX_ATTEMPTS, the next
    one when the substitute is corrupt too. A pure function of these, from the same source, and never the slot's
    own sample (unless the source has no other).
    """
    planned = list(plan.sources.values())[source]
    n = planned.shape.n
    epoch, in_epoch = divmod(int(position), n)
    where = np.array([[epoch], [in_epoch]], dtype=np.int64)
    own = int(ordinals_at(plan.seed, planned, where[0], where[1])[0])
    drawn = key(plan.seed, planned.name, "substitute", epoch, in_epoch, attempt) % max(1, n - 1)
    view_ordinal = (own + 1 + drawn) % n
    ordinal = planned.view.version_ordinals(np.array([view_ordinal], dtype=np.int64))
    return view_ordinal, int(ordinal[0])
