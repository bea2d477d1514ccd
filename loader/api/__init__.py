"""Names that `import loader` offers, each loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import errors
from ..cache.spec import NodeCache
from ..dataset.names import escape_key
from ..dataset.root import Root
from ..dataset.versions.version import Version, View

if TYPE_CHECKING:
    from penstock.formats.open_foreign import open_foreign

    from ..dataset.hash_splits import split_of
    from ..dataset.publishing.writer import Writer
    from ..dataset.shards.part import Part
    from ..dataset.versions.stored_list import listed
    from ..modalities.audio.request import audio
    from ..modalities.image.random_crop import random_resized_crop
    from ..modalities.image.request import image
    from ..modalities.moving_rows import moving_rows
    from ..modalities.video.request import video
    from ..order.plan import Plan
    from ..order.sources.bucket import bucket
    from ..order.sources.pack_request import pack
    from ..order.sources.views import synthetic
    from ..order.sources.window_layout import rows, times
    from ..rollouts.join_calls import join_calls
    from ..rollouts.rollout import rollout
    from ..rollouts.rollout_fields import ROLLOUT_GROUPS
    from ..run.batch.batch import Batch
    from ..run.batch.substitution import Substitution
    from ..run.ledger import read_ledger
    from ..run.loader import Loader
    from ..run.recipe.decode import by_bucket, laid_out
    from ..run.recipe.world import World
    from ..run.replay import Replay
    from ..run.trail.read_trail import RunTrail, read_trail
    from ..run.trail.trail import Trail
    from .explain import Explanation, explain
    from .follow import follow
    from .items import items
    from .norms import norm, normalise
    from .online import OnlineBatches, backlog, online
    from .plan_of import plan_of
    from .plans import by_score, open_plan, plan, source, write_part
    from .report import report
    from .torch import on, torch_dataset
    from .windows import delta_timestamps, to_lerobot, windows

__all__ = [
    "ROLLOUT_GROUPS",
    "Batch",
    "Explanation",
    "Loader",
    "NodeCache",
    "OnlineBatches",
    "Part",
    "Plan",
    "Replay",
    "Root",
    "RunTrail",
    "Substitution",
    "Trail",
    "Version",
    "View",
    "World",
    "Writer",
    "audio",
    "backlog",
    "bucket",
    "by_bucket",
    "by_score",
    "delta_timestamps",
    "errors",
    "escape_key",
    "explain",
    "follow",
    "image",
    "items",
    "join_calls",
    "laid_out",
    "listed",
    "moving_rows",
    "norm",
    "normalise",
    "on",
    "online",
    "open_foreign",
    "open_plan",
    "pack",
    "plan",
    "plan_of",
    "random_resized_crop",
    "read_ledger",
    "read_trail",
    "report",
    "rollout",
    "rows",
    "source",
    "split_of",
    "synthetic",
    "times",
    "to_lerobot",
    "torch_dataset",
    "video",
    "windows",
    "write_part",
]

_LATER = {
    "Batch": "..run.batch.batch",
    "Explanation": ".explain",
    "Loader": "..run.loader",
    "OnlineBatches": ".online",
    "Part": "..dataset.shards.part",
    "Plan": "..order.plan",
    "ROLLOUT_GROUPS": "..rollouts.rollout_fields",
    "Replay": "..run.replay",
    "RunTrail": "..run.trail.read_trail",
    "Substitution": "..run.batch.substitution",
    "Trail": "..run.trail.trail",
    "World": "..run.recipe.world",
    "Writer": "..dataset.publishing.writer",
    "audio": "..modalities.audio.request",
    "backlog": ".online",
    "bucket": "..order.sources.bucket",
    "by_bucket": "..run.recipe.decode",
    "by_score": ".plans",
    "delta_timestamps": ".windows",
    "explain": ".explain",
    "follow": ".follow",
    "image": "..modalities.image.request",
    "items": ".items",
    "join_calls": "..rollouts.join_calls",
    "laid_out": "..run.recipe.decode",
    "listed": "..dataset.versions.stored_list",
    "moving_rows": "..modalities.moving_rows",
    "norm": ".norms",
    "normalise": ".norms",
    "on": ".torch",
    "online": ".online",
    "open_foreign": "penstock.formats.open_foreign",
    "open_plan": ".plans",
    "pack": "..order.sources.pack_request",
    "plan": ".plans",
    "plan_of": ".plan_of",
    "random_resized_crop": "..modalities.image.random_crop",
    "read_ledger": "..run.ledger",
    "read_trail": "..run.trail.read_trail",
    "report": ".report",
    "rollout": "..rollouts.rollout",
    "rows": "..order.sources.window_layout",
    "source": ".plans",
    "split_of": "..dataset.hash_splits",
    "synthetic": "..order.sources.views",
    "times": "..order.sources.window_layout",
    "to_lerobot": ".windows",
    "torch_dataset": ".torch",
    "video": "..modalities.video.request",
    "windows": ".windows",
    "write_part": ".plans",
}
"""Names whose modules load on first use."""


def named(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name], __name__), name)
    return globals()[name]
