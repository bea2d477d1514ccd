"""Checksums and the filter in C, compiled for x86-64 and for ARM, which is emulated: a part of `make prove`.

scripts/install-arm.sh brings the compiler and the emulator.
"""

import tempfile
from collections import Counter
from pathlib import Path

from sanitized import ROOT, command_output

FLAGS = ["-O2", "-static", "-Wall", "-Wextra", "-Werror"]
PROCESSORS = {"SSE4.2": ("gcc", []), "ARMv8": ("aarch64-linux-gnu-gcc", ["qemu-aarch64"])}
"""Instructions that must be among those that run -> (compiler, what runs its programs)."""


FILTERED = "86a32ce21f8a3763"
"""Checksum of all bits of the filter's cases."""


def count_cases():
    """Counter of the cases. Raises: AssertionError with what a compiler or the program said."""
    counted = Counter()
    for name, (compiler, runner) in PROCESSORS.items():
        *means, cases = output("crc32c_cases.c", compiler, runner)
        assert name in means
        counted[f"checksums by {name}"] += int(cases)
        bits, cases = output("resample_cases.c", compiler, runner)
        assert bits == FILTERED
        counted[f"filters beside {name}"] += int(cases)
    return counted


def output(source, compiler, runner):
    """The words that a program prints."""
    with tempfile.TemporaryDirectory() as folder:
        program, tests = Path(folder) / "cases", ROOT / "tests" / "native"
        command_output([compiler, *FLAGS, f"-I{ROOT / 'loader' / 'native'}", tests / source, "-o", program])
        return command_output([*runner, program]).split()


def jobs():
    """Name -> (about how many seconds, call)."""
    return {"native, on other processors": (5, count_cases)}
