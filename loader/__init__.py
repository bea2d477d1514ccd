"""penstock's loader: read and write dataset versions, and iterate over them in an order that is a contract.

root = loader.Root("data")                                   a folder or bucket prefix
version = root.open("photos@latest")                         an immutable version
plan = loader.plan({"photos": version}, seed=7, global_batch=64)
for batch in loader.Loader(plan): ...                        every batch a pure function of its step
"""

from . import errors
from .api import by_score, open_plan, plan, source, write_part
from .cache.spec import NodeCache
from .dataset.member_names import escape_key
from .dataset.part import Part
from .dataset.root import Root
from .dataset.version import Version
from .dataset.view import View
from .dataset.writer import Writer
from .explain import Explanation, explain
from .follow import follow
from .modalities.excerpt import audio
from .modalities.photo import image
from .modalities.video import video
from .order.bucket import bucket
from .order.pack import pack
from .order.plan import Plan
from .order.views import synthetic
from .report import report
from .run.batch import Batch
from .run.by_bucket import by_bucket
from .run.ledger import read_ledger
from .run.loader import Loader
from .run.substitution import Substitution
from .run.world import World
from .torch import torch_dataset

__all__ = [
    "Batch",
    "Explanation",
    "Loader",
    "NodeCache",
    "Part",
    "Plan",
    "Root",
    "Substitution",
    "Version",
    "View",
    "World",
    "Writer",
    "audio",
    "bucket",
    "by_bucket",
    "by_score",
    "errors",
    "escape_key",
    "explain",
    "follow",
    "image",
    "open_plan",
    "pack",
    "plan",
    "read_ledger",
    "report",
    "source",
    "synthetic",
    "torch_dataset",
    "video",
    "write_part",
]
