"""Stand in for torchvision and accelerate, which LeRobot imports, in a process and in those that it starts.

LeRobot's datasets use torchvision's reader of videos, which PyAV is here, and nothing of accelerate.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace


class VideoReader:
    """Frames of a video from the last keyframe before a time on, as torchvision's reader of that name gives them."""

    def __init__(self, path, _stream):
        import av

        self.container = av.open(path)
        self.stream = self.container.streams.video[0]

    def seek(self, time_s, keyframes_only):
        assert keyframes_only
        self.container.seek(int(time_s / self.stream.time_base), stream=self.stream, backward=True)

    def __iter__(self):
        import torch

        for frame in self.container.decode(self.stream):
            picture = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"pts": float(frame.pts * frame.time_base), "data": picture}


def stub_module(name, **values):
    sys.modules[name] = module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(values)
    return module


stub_module("accelerate", Accelerator=object)
stub_module("torchvision.transforms", v2=stub_module("torchvision.transforms.v2"))
stub_module(
    "torchvision",
    transforms=sys.modules["torchvision.transforms"],
    io=SimpleNamespace(VideoReader=VideoReader),
    set_video_backend=lambda backend: None,
)
