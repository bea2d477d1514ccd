"""What `import loader` offers: names frozen in a test, handed out on first use."""

from .. import errors
from ..cache.spec import NodeCache
from ..dataset.member_names import escape_key
from ..dataset.part import Part
from ..dataset.root import Root
from ..dataset.version import Version
from ..dataset.view import View
from ..dataset.writer import Writer
from ..modalities.excerpt import audio
from ..modalities.photo import image
from ..modalities.video import video
from ..order.bucket import bucket
from ..order.pack import pack
from ..order.plan import Plan
from ..order.views import synthetic
from ..run.batch import Batch
from ..run.by_bucket import by_bucket
from ..run.ledger import read_ledger
from ..run.loader import Loader
from ..run.substitution import Substitution
from ..run.world import World
from .explain import Explanation, explain
from .follow import follow
from .plans import by_score, open_plan, plan, source, write_part
from .report import report
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
