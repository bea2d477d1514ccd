"""The extension built with the sanitizers of gcc, under the tests of its verbs with many more examples.

A part of `make prove`. AddressSanitizer finds bytes outside of what was given, UndefinedBehaviorSanitizer arithmetic
that C does not define.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-O1", "-g", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"]
SANITIZERS = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
OPTIONS = "handle_sigbus=0:detect_leaks=0:allocator_may_return_null=1"
"""A SIGBUS is the extension's to handle; Python leaves memory to the end of the process."""
N_EXAMPLES = 20_000


def count_examples():
    """Counter of the examples. Raises: AssertionError with what the compiler, a sanitizer or a test said."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "loader"
        shutil.copytree(ROOT / "loader", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        native = package / "native"
        include, target = f"-I{sysconfig.get_path('include')}", native / "_native.abi3.so"
        command_output(["gcc", *FLAGS, *SANITIZERS, include, native / "_native.c", "-o", target])
        environment = {
            **os.environ,
            "ASAN_OPTIONS": OPTIONS,
            "LD_PRELOAD": command_output(["gcc", "-print-file-name=libasan.so"]).strip(),
            "PYTHONMALLOC": "malloc",  # memory that the sanitizer knows
            "PYTHONPATH": folder,
            "NATIVE_EXAMPLES": str(N_EXAMPLES),
        }
        where = "from loader.native import _native; print(_native.__file__)"
        runs = command_output([sys.executable, "-P", "-c", where], env=environment)
        assert runs.strip() == str(target), runs
        tests = ["test_pieces.py", "test_resample.py", "test_verbs.py"]
        for name in tests:
            shutil.copy(ROOT / "tests" / "native" / name, folder)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        out = command_output(command, env=environment, cwd=folder)
        assert "passed" in out, out
        return Counter({"examples of the extension": N_EXAMPLES})


def command_output(command, **how):
    """What a command printed. Raises: AssertionError where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def jobs():
    """Name -> (about how many seconds, call)."""
    return {"native, sanitized": (250, count_examples)}
