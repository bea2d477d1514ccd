"""What holds for all tests, and what several folders share."""

import gc
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from tests.servers.s3 import boto3_client

os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = (
    "false"  # else gcsfs looks for a kind of bucket first, up to 60 s each
)

os.fsync = lambda descriptor: (
    None
)  # a power cut needs it, and tests kill processes: a disk takes 5 ms for each

FAST_S = 0.05
"""What a function of tests takes that tests/slow.txt does not list, about."""

# A busy machine is as slow as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
settings.register_profile("fast", max_examples=25)
settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--planted-sample", type=int, default=0, help="plant so many bugs a day, others each day"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Marks tests (slow, nightly, at_scale), keeps the day's sample of planted bugs, and puts long files first.

    A slow property draws two fifths of its examples, unless `make test-full` or a profile asks for them.
    """
    lines = (Path(__file__).parent / "slow.txt").read_text().splitlines()  # written by times.py
    seconds = {test: float(took) for took, test in (line.split(" ", 1) for line in lines)}
    nightly = set((Path(__file__).parent / "nightly.txt").read_text().splitlines())
    every_example = bool(os.environ.get("PENSTOCK_FULL")) or config.getoption("--hypothesis-profile")
    properties = set[Callable[..., object]]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if function in seconds:
            item.add_marker("slow")
        if function in nightly:
            item.add_marker("nightly")
        if "at_scale" in getattr(item, "fixturenames", ()):
            item.add_marker("at_scale")
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj) and function in seconds:
            item.add_marker("at_scale")
            if not every_example:
                properties.add(item.obj)
    for test in properties:
        drawn = test._hypothesis_internal_use_settings  # type: ignore[attr-defined]
        fewer = max(4, drawn.max_examples * 2 // 5)
        test._hypothesis_internal_use_settings = settings(drawn, max_examples=fewer)  # type: ignore[attr-defined]
    n = config.getoption("--planted-sample")
    planted = [item for item in items if item.get_closest_marker("mutants")]
    if n and planted:
        first = date.today().toordinal() * n  # in as many days as it takes, each bug is planted
        kept = {planted[place % len(planted)].nodeid for place in range(first, first + n)}
        config.hook.pytest_deselected(items=[item for item in planted if item.nodeid not in kept])
        items[:] = [item for item in items if item not in planted or item.nodeid in kept]
    yield
    by_file: dict[str, dict[str, float]] = {}
    for item in items:
        file, function = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        by_file.setdefault(file, {})[function] = seconds.get(function, FAST_S)
    cost = {file: sum(functions.values()) for file, functions in by_file.items()}
    items.sort(key=lambda item: -cost[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """What the collection imported stays to the end: the garbage collector, which some tests call hundreds of times,
    need not look through it each time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says when the corpus of real media was not there to look at."""
    asked = "server" in config.option.markexpr.replace("not server", "") or not config.option.markexpr
    if asked and not os.environ.get("PENSTOCK_MEDIA"):
        terminalreporter.write_line(
            "PENSTOCK_MEDIA is not set: tests of the corpus of real media had no file to look at", yellow=True
        )


@pytest.fixture(scope="session")
def at_scale():
    """at_scale(in_ci, in_nightly) -> the second when PENSTOCK_FULL is set, as `make test-full` sets it: for what grows
    with a size (batches, objects, databases), where the smaller one meets the same code."""
    full = bool(os.environ.get("PENSTOCK_FULL"))
    return lambda in_ci, in_nightly: in_nightly if full else in_ci


@pytest.fixture(scope="session")
def shared():
    """shared("order/properties") -> the module tests/order/properties.py: test modules cannot import one another."""

    def load(path):
        full = "penstock_tests_" + path.replace("/", "_")
        if full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{path}.py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[full] = module
            spec.loader.exec_module(module)
        return sys.modules[full]

    return load


@pytest.fixture(scope="session")
def children():
    """children() -> the numbers of this process's children and of theirs, with those that nobody waited for."""

    def numbers():
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path("/proc", entry, "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
        found = {pid for pid, parent in parents.items() if parent == os.getpid()}
        return found | {pid for pid, parent in parents.items() if parent in found}

    return numbers


@pytest.fixture(scope="session")
def s3_answers():
    """(method, path, bytes) of what the S3 server answered, the last ones."""
    return deque(maxlen=10_000)


@pytest.fixture(scope="session")
def s3(s3_answers):
    """Options of an S3 server with one bucket, "bucket". It answers one request at a time: moto looks whether a key is
    there and then writes it, and two threads could do that at once, which no real store does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party imports
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ, start_response):
        with turn:
            body = list(app(environ, start_response))
            s3_answers.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], sum(map(len, body))))
            return body

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    options = {**S3_KEYS, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
    create_bucket(options)
    yield options
    server.shutdown()
    thread.join()
    server.server_close()


S3_KEYS = {"key": "AKIAPLANTEDKEY", "secret": "PLANTEDsecretPLANTED"}


def create_bucket(options):
    """The bucket "bucket" on the S3 server that the options name."""
    client = boto3_client(options)
    client.create_bucket(Bucket="bucket")
    client.close()


@pytest.fixture(scope="session")
def ceph(shared, tmp_path_factory):
    """Options of a Ceph S3 server with one bucket, "bucket"; for tests marked `ceph`."""
    with shared("servers/ceph").ceph(tmp_path_factory.mktemp("ceph"), **S3_KEYS) as endpoint:
        options = {**S3_KEYS, "endpoint_url": endpoint}
        create_bucket(options)
        yield options


@pytest.fixture(scope="session")
def gcs(shared):
    """Options of a Google Cloud Storage of the tests' own (`servers/gcs.py`) with one bucket, "bucket"."""
    origin = shared("servers/gcs").Gcs("bucket")
    origin.bearer = "PLANTEDtokenPLANTED"
    server = shared("servers/http").HttpServer(origin)
    yield {"endpoint_url": server.endpoint, "bearer_token": origin.bearer}
    server.close()


@pytest.fixture(scope="session")
def azure(shared, tmp_path_factory):
    """Options of Azurite with one container, "bucket"; for tests marked `server`."""
    module = shared("servers/azurite")
    with module.azurite(tmp_path_factory.mktemp("azurite"), "bucket") as endpoint:
        yield {"account_name": module.ACCOUNT, "account_key": module.ACCOUNT_KEY, "endpoint": endpoint}
