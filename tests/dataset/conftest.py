"""Loads the modules that several test files share (test modules cannot import one another), and stores."""

import importlib.util
import itertools
import sys
import threading
from pathlib import Path

import pytest

_numbers = itertools.count()


def _load(name):
    full = "penstock_dataset_tests_" + name
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(scope="session")
def properties():
    """What must hold of the format, as functions that raise AssertionError."""
    return _load("properties")


@pytest.fixture(scope="session")
def stores():
    """Stores that count what is asked of them, or read another answer into it."""
    return _load("stores")


@pytest.fixture
def url():
    """The URL of an empty place in memory."""
    return f"memory://dataset-{next(_numbers)}"


@pytest.fixture
def root(url):
    import loader

    return loader.Root(url)


@pytest.fixture(scope="session")
def bucket():
    """(url, options) of a bucket that answers one request at a time: moto looks whether a key is there and
    then writes it, and two threads could do that at once, which no real store does."""
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ, start_response):
        with turn:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_bucket(Bucket="dataset")
    client.close()
    options = {"region": "us-east-1", "endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b"}
    yield "s3://dataset", options
    server.shutdown()
    thread.join()
    server.server_close()
