"""The engine for Ray where no head answers, and what its cluster file takes."""

from contextlib import closing, contextmanager

import pytest

from loader.errors import EngineUnreachable, InvalidCluster
from penstock.compute.cluster import read_cluster
from penstock.compute.engines import ray_engine
from penstock.compute.engines.ray_engine import RayEngine
from tests.refusals import refusal
from tests.servers.http import HttpServer
from tests.servers.ports import free_port

RAY = 'engine = "ray"\naddress = "http://head:8265"\n'


def test_silence_is_no_end():
    head = f"http://127.0.0.1:{free_port()}"
    engine = RayEngine(head, slots=1, cpus=1)
    for ask in (
        lambda: engine.status("pk-a-1"),
        lambda: engine.find("pk-a-1"),
        lambda: engine.cancel("pk-a-1"),
        lambda: engine.submit("pk-a-1", ["true"], 1),
    ):
        with refusal(EngineUnreachable, where=head, given="URLError"):
            ask()


@contextmanager
def answering(origin, fault_of=lambda _: None):
    """An engine whose head answers so, with these faults."""
    with closing(HttpServer(origin)) as server:
        server.fault_of = fault_of
        yield RayEngine(server.endpoint, slots=1, cpus=1)


def test_404_of_something_before_the_head_is_no_end():
    def proxy(_):
        return 404, b"no backend", {}

    with answering(proxy) as engine, refusal(EngineUnreachable, what="GET /api/jobs/pk-a-1", given=404):
        engine.status("pk-a-1")

    def head(_):
        return 404, b"Job pk-a-1 does not exist", {}

    with answering(head) as engine:
        assert engine.status("pk-a-1").state == "ended"


@pytest.mark.parametrize("status", [200, 404, 502])
@pytest.mark.parametrize(("fault", "error"), [("cut", "IncompleteRead"), ("no-http", "BadStatusLine")])
def test_damaged_answer_is_silence(status, fault, error):
    def head(_):
        return status, b"Job pk-a-1 does not exist", {}

    with answering(head, lambda _: fault) as engine:
        for ask in (lambda: engine.find("pk-a-1"), lambda: engine.submit("pk-a-1", ["true"], 1)):
            with refusal(EngineUnreachable, what="GET /api/jobs/pk-a-1", given=error):
                ask()


def test_submission_whose_answer_is_cut_is_looked_up():
    requests = []

    def head(request):
        requests.append(f"{request.method} {request.path}")
        return 200, b'{"status": "PENDING"}', {}

    def fault_of(request):
        return "cut" if request.method == "POST" else None

    with answering(head, fault_of) as engine:
        engine.submit("pk-a-1", ["true"], 1)
    assert requests == ["POST /api/jobs/", "GET /api/jobs/pk-a-1"]


def test_token_goes_to_the_head_alone(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "planted-token")
    seen = []

    def elsewhere(request):
        seen.append(request.headers)
        return 404, b"Job pk-a-1 does not exist", {}

    with closing(HttpServer(elsewhere)) as other:

        def head(_):
            return 302, b"", {"Location": f"{other.endpoint}/api/jobs/pk-a-1"}

        with answering(head) as engine, refusal(InvalidCluster, what="GET /api/jobs/pk-a-1", given=302):
            engine.status("pk-a-1")
    assert not seen


def test_job_that_does_not_end_is_no_cancelled_one(monkeypatch):
    monkeypatch.setattr(ray_engine, "CANCEL_S", 0.0)

    def head(_):
        return 200, b'{"status": "RUNNING", "job_id": "01000000"}', {}

    with answering(head) as engine, refusal(EngineUnreachable, what="pk-a-1", accepted=0.0):
        engine.cancel("pk-a-1")


def test_token_that_cannot_be_read_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with refusal(InvalidCluster, what="RAY_AUTH_TOKEN_PATH", where=tmp_path / "none"):
        RayEngine("http://127.0.0.1:1", slots=1, cpus=1).status("pk-a-1")


@pytest.mark.parametrize(
    ("text", "what", "given"),
    [
        ('engine = "ray"\n', "address", ""),
        ('engine = "ray"\naddress = "head:8265"\n', "address", "head:8265"),
        (RAY + 'queue = "long"\n', "queue", "ray"),
        (RAY + '[slot]\nscratch = "1GiB"\n', "scratch", "ray"),
        ('address = "http://head:8265"\n', "address", "local"),
        ("[slot]\ngpus = 1\n", "gpus", "local"),
        (RAY + "[slot]\ngpus = -1\n", "slot.gpus", -1),
        (RAY + '[slot]\ngpu_type = "a100"\n', "slot.gpus", 0),
        (RAY + "[slot]\ngpus = 2\n", "slot.cpus", 1),
        (RAY + "[slot]\ngpu = 2\n", "slot.gpu", None),
    ],
)
def test_what_a_file_of_ray_does_not_take_is_told(text, what, given, tmp_path):
    (tmp_path / "cluster.toml").write_text(text)
    with refusal(InvalidCluster, what=what, where=tmp_path / "cluster.toml", given=given):
        read_cluster(tmp_path / "cluster.toml")


def test_runner_of_ray_has_one_processor_unless_told(tmp_path):
    (tmp_path / "cluster.toml").write_text(RAY)
    assert read_cluster(tmp_path / "cluster.toml").cpus == 1
