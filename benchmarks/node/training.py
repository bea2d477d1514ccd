"""A training fed by one way of one library, in a process of its own: what its device loses against resident batches.

python -m benchmarks.node.training NAME        a module of benchmarks/peers, asked as benchmarks/contestant.py is
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch

from ..contestant import Contestant, serve
from .models import CLASSES, MODELS, SIDE_PX

LYING = 4
"""Batches that lie on the device, in turn."""


def device_of() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Trainer(Contestant):
    """A contestant with a model: each `train` also takes steps over batches that lie on the device."""

    def __init__(self, peer: Any) -> None:
        super().__init__(peer)
        self.device = device_of()
        self.steps: dict[str, Callable[[Any], None]] = {}
        self.lying: Iterator[Any] | None = None

    def train(self, model: str, seconds: float) -> dict[str, Any]:
        """Seconds of a step over batches of the library, and over those that lie on the device, before and after."""
        if model not in self.steps:
            self.steps[model] = self._step_of(model)
        before = self._run(model, self._on_device(), seconds / 3)
        fed = self._run(model, self.batches, seconds)
        after = self._run(model, self._on_device(), seconds / 3)
        base_s = (before["step_s"] + after["step_s"]) / 2
        return {**fed, "base_s": base_s, "lost": 1 - base_s / fed["step_s"]}

    def _on_device(self) -> Iterator[Any]:
        assert self.task is not None
        if self.lying is None:
            shape = (self.task.batch, SIDE_PX, SIDE_PX, 3)
            self.lying = cycle(
                [torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device) for _ in range(LYING)]
            )
        return self.lying

    def _run(self, model: str, batches: Iterator[Any], seconds: float) -> dict[str, float]:
        """step_s, and of it: wait_s for the batch, move_s until it is handed to the device, thread_s of processor."""
        step = self.steps[model]
        self._synchronize()
        steps, wait_s, move_s = 0, 0.0, 0.0
        start, processor = time.perf_counter(), time.thread_time()
        while steps < 3 or time.perf_counter() - start < seconds:
            asked = time.perf_counter()
            batch = next(batches)
            got = time.perf_counter()
            # To a batch that is there already this does nothing.
            images = torch.as_tensor(batch).to(self.device, non_blocking=True)
            moved = time.perf_counter()
            step(images)
            steps, wait_s, move_s = steps + 1, wait_s + got - asked, move_s + moved - got
        self._synchronize()
        all_s, thread_s = time.perf_counter() - start, time.thread_time() - processor
        return {
            name: value / steps
            for name, value in {
                "step_s": all_s,
                "wait_s": wait_s,
                "move_s": move_s,
                "thread_s": thread_s,
            }.items()
        }

    def _step_of(self, name: str) -> Callable[[Any], None]:
        assert self.task is not None
        model = MODELS[name]().to(self.device, memory_format=torch.channels_last).train()
        fused = {"fused": True} if self.device == "cuda" else {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **fused)
        labels = torch.randint(0, CLASSES, (self.task.batch,), device=self.device)

        on_gpu = self.device == "cuda"
        kind = torch.bfloat16 if on_gpu else torch.float32

        def step(images: Any) -> None:
            pixels = images.permute(0, 3, 1, 2).to(kind).sub_(118.0).mul_(1 / 58.0)
            with torch.autocast(self.device, kind, enabled=on_gpu):
                loss = torch.nn.functional.cross_entropy(model(pixels), labels[: len(pixels)])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        return step

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


if __name__ == "__main__":
    serve(lambda: Trainer(importlib.import_module(f"benchmarks.peers.{sys.argv[1]}")))
