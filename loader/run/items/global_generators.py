"""The generators that all code of a process shares: Python's `random`, numpy's and torch's."""

import random
import sys
from typing import Any, Protocol

import numpy as np

State = Any
"""State of a generator, to compare and to restore."""


class GlobalGenerator(Protocol):
    """A generator without an owner; items draw from it by module functions such as `random.random()`."""

    name: str

    def is_loaded(self) -> bool:
        """Return whether the module is imported: nothing draws from the generator before."""

    def state(self) -> State: ...

    def has_state(self, state: State) -> bool:
        """Return whether nothing was drawn since the generator had this state."""

    def restore(self, state: State) -> None: ...

    def seed(self, words: tuple[int, int]) -> None:
        """Seed the generator with two 64-bit numbers."""


class PythonRandom:
    """Generator of the module `random`."""

    name = "random"

    def is_loaded(self) -> bool:
        return True

    def state(self) -> State:
        return random.getstate()

    def has_state(self, state: State) -> bool:
        return bool(random.getstate() == state)

    def restore(self, state: State) -> None:
        random.setstate(state)

    def seed(self, words: tuple[int, int]) -> None:
        first, second = words
        number = first | second << 64
        random.seed(number)


class NumpyRandom:
    """Generator behind `numpy.random.rand` and its siblings."""

    name = "numpy.random"

    def is_loaded(self) -> bool:
        # numpy 2 imports numpy.random at its first use.
        return "numpy.random" in sys.modules

    def state(self) -> State:
        return np.random.get_state(legacy=False)

    def has_state(self, state: State) -> bool:
        now: Any = np.random.get_state(legacy=False)
        if now["has_gauss"] != state["has_gauss"]:
            return False
        before = state["state"]
        after = now["state"]
        if after["pos"] != before["pos"]:
            return False
        # Draws that wrap around 624 numbers may end at the same position.
        return np.array_equal(after["key"], before["key"])

    def restore(self, state: State) -> None:
        np.random.set_state(state)

    def seed(self, words: tuple[int, int]) -> None:
        numbers = np.array(words, "<u8")
        four_numbers = numbers.view("<u4")  # numpy takes 32-bit numbers
        np.random.seed(four_numbers)


class TorchRandom:
    """torch's generator for the CPU."""

    name = "torch"

    def is_loaded(self) -> bool:
        torch = sys.modules.get("torch")
        if not hasattr(torch, "default_generator"):
            return False
        # While another thread imports torch, the generator is there and its state ends the process by SIGSEGV.
        spec = getattr(torch, "__spec__", None)
        return not getattr(spec, "_initializing", False)

    def state(self) -> State:
        return self._generator().get_state()

    def has_state(self, state: State) -> bool:
        now = self._generator().get_state()
        return bool(now.equal(state))

    def restore(self, state: State) -> None:
        self._generator().set_state(state)

    def seed(self, words: tuple[int, int]) -> None:
        number = words[0] >> 1  # torch takes 63 bits of a positive number
        self._generator().manual_seed(number)

    def _generator(self) -> Any:
        return sys.modules["torch"].default_generator


GENERATORS: tuple[GlobalGenerator, ...] = (
    PythonRandom(),
    NumpyRandom(),
    TorchRandom(),
)
