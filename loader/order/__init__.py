"""The order: which sample is in which batch, as a pure function of the plan and the step (docs/order.md)."""

from .content import MixtureSource, PlannedSource, source
from .from_json import plan_from_json
from .plan import Plan, make_plan
from .random.generators import sample_rng_key
from .sources.bucket import BucketBy, bucket
from .sources.packed_view import PackedView
from .sources.packing import PackBy, pack
from .sources.views import OrderView, SyntheticView, synthetic
from .sources.window_view import WindowView
from .steps.slots import (
    Slots,
    delivered_digest,
    identity_hash,
    planned_digest,
    rank_slice,
    slot_identities,
    substitute,
)

__all__ = [
    "BucketBy",
    "MixtureSource",
    "OrderView",
    "PackBy",
    "PackedView",
    "Plan",
    "PlannedSource",
    "Slots",
    "SyntheticView",
    "WindowView",
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
