"""Let torchvision's wheel of the registry be imported beside a torch for processors.

Its compiled operators need a torch with CUDA. Its Python code describes two of them at import, so they are declared
here, without an implementation: datasets and transforms call none of them. A folder with this file on PYTHONPATH
serves a process and those that it starts.
"""

import importlib.abc
import sys

DECLARATIONS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class OperatorsFirst(importlib.abc.MetaPathFinder):
    """Finds nothing: declares the operators when torchvision is imported."""

    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare()


def declare():
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for declaration in DECLARATIONS:
        library.define(declaration)
    sys.modules[__name__].library = library  # the operators live as long as it


sys.meta_path.insert(0, OperatorsFirst())
