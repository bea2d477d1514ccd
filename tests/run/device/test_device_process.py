"""A training with a device ends at once: by Ctrl-C, at its end without `close`, and in a forked child."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import loader
from tests.servers.patience import PATIENCE_S

HERE = Path(__file__).parent
BEGIN = f"""
import faulthandler, os, signal, sys, threading
sys.path.insert(0, {str(HERE)!r})
import loader
from delayed import DelayedCopies

faulthandler.dump_traceback_later(25)
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it would be ignored
plan = loader.plan({{"photos": loader.Root(sys.argv[1]).open("photos@1")}}, seed=8, global_batch=5)
how = {{"threads": {{"workers": 2}}, "caller": {{"workers": 0}}}}
how["processes"] = {{"workers": 1, "executor": "processes"}}
"""
STUCK = """
def stuck(sample, rng):
    os.write(1, b"stuck\\n")
    threading.Event().wait()

with loader.Loader(plan, 0, 1, transform=stuck, device=DelayedCopies(), **how[sys.argv[2]]) as batches:
    next(batches)
"""
OPEN = """
loaders = [loader.Loader(plan, 0, 1, device=DelayedCopies(), **options) for options in how.values()]
for batches in loaders:
    held = [next(batches) for _ in range(5)]
child = os.fork()  # it has the batches, and no threads
if not child:
    while loaders:
        batches = loaders.pop()
        try:
            next(batches)
        except loader.errors.InvalidRuntime as error:
            print(str(error)[:33], flush=True)
        if len(loaders) < 2:
            batches.close()
    del batches, held
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print([next(batches).step for batches in loaders], flush=True)
"""


@pytest.fixture
def url(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    samples.write(root, "photos", range(40), fields=("cls",))
    return root.url


@contextmanager
def training(script, *arguments):
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + script, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=HERE.parents[2], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["threads", "caller"])
def test_ctrl_c_ends_a_training_whose_transform_hangs(url, how):
    with training(STUCK, url, how) as process:
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


def test_training_may_end_and_fork_without_closing(url):
    with training(OPEN, url) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == ["this Loader was made in process " + out[32:33]] * 3 + ["[5, 5, 5]"]
