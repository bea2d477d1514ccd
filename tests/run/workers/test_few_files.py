"""A process that may have few open files loads what it is to load, or is told by penstock what it lacks."""

import numpy as np
import pytest

import loader
from tests.servers.processes import python

CHILD = """
import resource, sys
import numpy as np
import loader
from loader.errors import PenstockError

root, executor, limits = sys.argv[1], sys.argv[2], [int(one) for one in sys.argv[3:]]

def load():
    with loader.Root(root) as opened:
        plan = loader.plan({"d": opened.open("d@latest").select("x.npy")}, seed=1, global_batch=16)
        workers = 0 if executor == "caller" else 2
        with loader.Loader(
            plan, 0, 1, framework="numpy", steps=6, workers=workers,
            executor="threads" if executor == "caller" else executor,
        ) as batches:
            return [batch["x.npy"].sum() for batch in batches]

whole = load()  # what is imported late is imported now
before = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for limit in limits:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before))
    try:
        assert load() == whole
        said = "works"
    except PenstockError as error:
        said = f"{type(error).__name__}: {error}"
    print(limit, said)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> str:
    """Six shards."""
    url = str(tmp_path_factory.mktemp("few") / "root")
    for part in range(6):
        with loader.Root(url).write("d") as writer:
            for number in range(16):
                writer.add(f"{part}-{number}", {"x.npy": np.arange(8) + number})
    return url


@pytest.mark.parametrize(
    ("executor", "limits"),
    [
        ("caller", range(6, 40)),
        ("threads", range(6, 40)),
        ("processes", (8, 10, 12, 14, 40)),
    ],
)
def test_few_open_files(root, executor, limits) -> None:
    done = python("-c", CHILD, root, executor, *limits)
    assert done.returncode == 0, done.stderr[-2000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(said) == [str(limit) for limit in limits]
    assert list(said.values())[-1] == "works"
    failed = {limit: text for limit, text in said.items() if text != "works"}
    assert all("ulimit -n" in text for text in failed.values()), failed


def test_descriptor_that_got_lost_is_missed() -> None:
    """Else the batch would be looked for in the memory of the one before it."""
    code = """
import resource
from loader.run.workers.messages import MessageKind, WorkerMessage, connection, receive, send

trainer, worker = connection()
send(worker, WorkerMessage(MessageKind.DONE, segment=-1), 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (trainer.fileno(), trainer.fileno()))
try:
    print(receive(trainer, wait=True))
except OSError as error:
    print(error.errno)
"""
    done = python("-c", code)
    assert (done.stdout, done.stderr) == ("24\n", "")
