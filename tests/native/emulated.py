"""The checksums in C, compiled for x86-64 and for ARM, which is emulated: a part of `make prove`.

scripts/install-arm.sh brings the compiler and the emulator.
"""

import tempfile
from collections import Counter
from pathlib import Path

from sanitized import ROOT, said

FLAGS = ["-O2", "-static", "-Wall", "-Wextra", "-Werror"]
PROCESSORS = {"SSE4.2": ("gcc", []), "ARMv8": ("aarch64-linux-gnu-gcc", ["qemu-aarch64"])}
"""Instructions that must be among those that run -> (compiler, what runs its programs)."""


def tested():
    """Counter of the cases. Raises: AssertionError with what a compiler or the program said."""
    counted = Counter()
    for name, (compiler, runner) in PROCESSORS.items():
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "cases"
            include = f"-I{ROOT / 'loader' / 'native'}"
            said([compiler, *FLAGS, include, ROOT / "tests" / "native" / "crc32c_cases.c", "-o", program])
            *means, cases = said([*runner, program]).split()
            assert name in means
            counted[f"checksums by {name}"] += int(cases)
    return counted


def jobs():
    """Name -> (about how many seconds, call)."""
    return {"native, on other processors": (5, tested)}
