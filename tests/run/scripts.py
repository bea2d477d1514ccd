"""Scripts of trainings, each in a process of its own: a fork of one (dataset/forks.py) that has imported the frameworks
once and has opened nothing. Ranks are given the environment that torchrun gives them."""

import atexit
import contextlib
import importlib
import os
import re
import runpy
import sys
import tempfile
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULUS = 2**64


@dataclass
class Done:
    """What became of the ranks of a script: their exit statuses, and what all of them printed."""

    codes: list[int]
    out: str
    errors: str

    @property
    def took(self):
        """[(step, digest over the ranks)] of the lines "took <step> <digest>"."""
        return took(self.out)


def took(out):
    digests = {}
    for step, digest in re.findall(r"took (\d+) (\d+)\n", out):  # a progress bar shares its line
        digests[int(step)] = (digests.get(int(step), 0) + int(digest)) % MODULUS
    return sorted(digests.items())


@contextlib.contextmanager
def script_runner(forks, *modules):
    """do(script, *arguments, folder, world_size=1, warn="ignore", gpus="") -> Done. modules: what is imported before;
    gpus: the GPUs that the script sees, as CUDA names them."""
    from torch.distributed import TCPStore

    with forks.processes(__file__, *modules) as processes:

        def do(script, *arguments, folder, world_size=1, warn="ignore", gpus=""):
            environments = [
                {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": gpus} for _ in range(world_size)
            ]
            if world_size > 1:
                store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                for rank, environment in enumerate(environments):
                    environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
                    environment |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
                    environment |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            with tempfile.TemporaryDirectory() as told:
                outs = [Path(told, f"{rank}.out") for rank in range(world_size)]
                common = {"arguments": list(map(str, arguments)), "folder": str(folder), "warn": warn}
                done = processes(
                    *(
                        {"script": str(script), "environment": environment, "told": str(out), **common}
                        for environment, out in zip(environments, outs, strict=True)
                    )
                )
                errors = [Path(f"{out}.errors").read_text() for out in outs]
                out = "".join(out.read_text() for out in outs)
            return Done([code for code, _ in done], out, "".join(errors))

        yield do


def run(script, arguments, folder, environment, told, warn):
    """One rank of a script, from its birth to its end."""
    for number, path, mode in ((0, os.devnull, "rb"), (1, told, "wb"), (2, f"{told}.errors", "wb")):
        with open(path, mode) as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    warnings.simplefilter(warn)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:  # as Python ends
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()


if __name__ == "<run_path>":
    warnings.simplefilter("ignore")
    # Its forks could use no GPU once this process has asked CUDA, and not the driver, how many there are.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in sys.argv[1:]:
        importlib.import_module(name)
