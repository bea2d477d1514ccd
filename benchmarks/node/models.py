"""Models to train: from torchvision and timm if they are installed, else with the same layers; a small one on a CPU."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

SIDE_PX, CLASSES = 224, 1000


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, as in ResNet-50."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        shapes = ((inside, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1))
        layers: list[nn.Module] = []
        for a, b, kernel, step in shapes:
            layers += [
                nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inside == out
            else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet50() -> Any:
    if find_spec("torchvision"):
        from torchvision.models import resnet50 as theirs

        return theirs(weights=None)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
    ]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for n in range(depth):
            layers.append(Bottleneck(inside, width, 1 if n else stride))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


class VitTiny(nn.Module):
    """Patches of 16 px, 12 layers of width 192 with 3 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (SIDE_PX // 16) ** 2, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(192, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))


def vit_tiny() -> Any:
    if find_spec("timm"):
        import timm

        return timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES)
    return VitTiny()


def small() -> Any:
    """One layer over patches: a step of a few ms on a CPU."""
    patches = (SIDE_PX // 16) ** 2
    return nn.Sequential(nn.Conv2d(3, 8, 16, 16), nn.Flatten(), nn.Linear(8 * patches, CLASSES))


MODELS = {"ResNet-50": resnet50, "ViT-Ti": vit_tiny, "small": small}


def models_of(device: str) -> tuple[str, ...]:
    return ("ResNet-50", "ViT-Ti") if device == "cuda" else ("small",)
