"""Entrypoint of an attempt on a Ray cluster: keeps one runner a slot, and restarts dead ones."""

import json
import signal
import sys
import threading
import time
from collections import Counter, deque
from typing import Any

from .ray_element import element

MOST_STARTS = 8
"""Most starts of a runner."""


STOPPED = 143
"""Exit status after SIGTERM."""


def main() -> int:
    """Run an attempt's runners; return the exit status."""
    import ray

    ends = threading.Event()
    ray.init(address="auto", log_to_driver=False)
    signal.signal(signal.SIGTERM, lambda *_: ends.set())  # must follow ray.init, which sets its own handler
    return _Driver(ray, json.loads(sys.argv[1]), ends).run()


class _Driver:
    """An attempt's runners."""

    def __init__(self, ray: Any, settings: dict[str, Any], ends: threading.Event) -> None:
        self._ray = ray
        self._settings = settings
        self._ends = ends
        resources = {
            "num_cpus": settings["cpus"],
            **({"memory": settings["memory_bytes"]} if settings["memory_bytes"] else {}),
            **({"num_gpus": settings["gpus"]} if settings["gpus"] else {}),
            **({"accelerator_type": settings["gpu_type"]} if settings["gpu_type"] else {}),
        }
        self._task = ray.remote(element).options(
            max_retries=0, scheduling_strategy="SPREAD", name="penstock runner", **resources
        )
        self._slots = min(settings["n_blocks"], settings["slots"])
        # A runner keeps its models for all its blocks: with GPUs, a slot has one runner, as it would have one actor.
        self._elements = min(settings["n_blocks"], (1 if settings["gpus"] else 4) * settings["slots"])
        self._begun: Counter[int] = Counter()
        self._running: dict[Any, int] = {}

    def run(self) -> int:
        """Run all elements, at most `_slots` at once; return the exit status of the driver."""
        waiting = deque(range(self._elements))
        status = 0
        while waiting or self._running:
            while waiting and len(self._running) < self._slots and not self._ends.is_set():
                self._begin(waiting.popleft())
            ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=0.5)
            if self._ends.is_set():
                self._cancel()
                return STOPPED
            for ref in ended:
                number = self._running.pop(ref)
                code, text = self._result(ref)
                if code in self._settings["final"]:
                    status = status or code  # 0 is final too: the first refusal counts
                    continue
                self._say(number, code, text)
                if self._begun[number] < MOST_STARTS:
                    waiting.append(number)
                    time.sleep(1)
                else:
                    status = code
        return status

    def _begin(self, number: int) -> None:
        """Start the runner of an element."""
        self._begun[number] += 1
        arguments = self._settings["runner"], number, self._elements, self._settings["environment"]
        self._running[self._task.remote(*arguments)] = number

    def _result(self, ref: Any) -> tuple[int, str]:
        try:
            code, text = self._ray.get(ref)
            return int(code), str(text)
        except self._ray.exceptions.RayError as error:
            return 1, f"{type(error).__name__}: {error}"

    def _say(self, number: int, code: int, text: str) -> None:
        for line in (*text.splitlines(), f"begun {self._begun[number]} times, ended with {code}"):
            print(f"element {number}: {line}", flush=True)

    def _cancel(self) -> None:
        for ref in self._running:
            self._ray.cancel(ref, force=False)
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=15)


if __name__ == "__main__":
    sys.exit(main())
