"""The order: which sample is in which batch, as a pure function of the plan and the step (docs/order.md)."""

from .assign import rank_slice
from .bucket import BucketBy, bucket
from .content import PlannedSource, Source, source
from .digest import delivered_digest, identity_hash, planned_digest, slot_identities
from .pack import PackBy, pack
from .packed_view import PackedView
from .plan import Plan, make_plan
from .record import plan_from_json
from .rng import sample_rng_key
from .slots import Slots
from .substitutes import substitute
from .views import OrderView, SyntheticView, synthetic

__all__ = [
    "BucketBy",
    "OrderView",
    "PackBy",
    "PackedView",
    "Plan",
    "PlannedSource",
    "Slots",
    "Source",
    "SyntheticView",
    "bucket",
    "delivered_digest",
    "identity_hash",
    "make_plan",
    "pack",
    "plan_from_json",
    "planned_digest",
    "rank_slice",
    "sample_rng_key",
    "slot_identities",
    "source",
    "substitute",
    "synthetic",
]
