"""A root with photos, and a training on them that kept a trail."""

import io
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import loader
from penstock.cli import main
from penstock.view.replays import idle_replays
from tests.servers.patience import PATIENCE_S
from tests.view import recipes

STEPS = 6
BATCH = 6
LABELS = ["cat", "dog", "owl"]


def photo(number, width=40, height=32):
    """JPEG bytes of a picture that no other number has."""
    coarse = np.random.default_rng(number).integers(0, 256, (4, 5, 3), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(coarse).resize((width + number % 7, height)).save(sink, "JPEG", quality=90)
    return sink.getvalue()


def black():
    """JPEG bytes of a black picture, of which every crop is black."""
    sink = io.BytesIO()
    Image.new("RGB", (40, 32)).save(sink, "JPEG")
    return sink.getvalue()


def write_photos(root, dataset="photos", numbers=range(14), **changed):
    """Publish a version of photos. changed: "p<number>" -> fields in place of the usual ones."""
    with root.write(dataset, part_samples=5, producer={"labels": LABELS}) as writer:
        for i in numbers:
            source = {"raw_uri": f"s3://raw/{i}.jpg", "raw_sha256": f"{i:064x}", "split": "train"}
            fields = {"jpg": photo(i), "cls": i % 3, **changed.get(f"p{i}", {})}
            writer.add(f"p/{i}", fields, metadata={"width": 40 + i % 7, "note": f"n{i % 2}"}, source=source)
    return root.open(f"{dataset}@latest")


def train(root, plan, run, recipe=recipes.recipe, world_size=1, steps=STEPS, **trail):
    """Carry a plan out, rank by rank, with a trail of all ranks."""
    kept = loader.Trail(
        root,
        run,
        recipe=f"tests.view.recipes:{recipe.__name__}",
        ranks="all",
        **{"tensors_every": 1, **trail},
    )
    for rank in range(world_size):
        options = {"framework": "numpy", "workers": 0, "corrupt_budget": 1, **recipe()}
        with loader.Loader(plan, rank, world_size, steps=steps, trail=kept, **options) as batches:
            for batch in batches:
                batches.note(loss=1.0 + batch.step / 100, per_sample={"loss": np.arange(len(batch))})


def shell_words(command):
    """The arguments that a shell gives to `penstock`."""
    script = "penstock() { printf '%s\\0' \"$@\"; }; " + command
    told = subprocess.run(["bash", "-c", script], check=True, capture_output=True, env={"LC_ALL": "C.UTF-8"})
    return told.stdout.decode().split("\0")[:-1]


def sweep(folder):
    """Retire photos@1 and give it up, whoever holds it open."""
    with loader.Root(folder) as root:
        root.retire("photos@1", reason="faces in it")
    assert (
        main(["gc", "sweep", "--give-up", "photos@1", "--apply", "--grace", "0s", "--root", str(folder)]) == 0
    )
    assert not list(folder.glob("data/*/*/media-00002.tar"))


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch):
    """Steps are made when they are asked for: tests count what is made, and take their time."""
    monkeypatch.setattr(idle_replays, "AHEAD_S", 3600)


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        yield root


@pytest.fixture
def plan(root):
    return loader.plan({"photos": write_photos(root).select("jpg", "cls")}, seed=3, global_batch=BATCH)


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A root with the runs `one`, of one rank, `three`, of three, and `floats`; only read. Sample p/0 is black."""
    folder = tmp_path_factory.mktemp("view") / "root"
    with loader.Root(folder) as root:
        version = write_photos(root, p0={"jpg": black()})
        plan = loader.plan({"photos": version.select("jpg", "cls")}, seed=3, global_batch=BATCH)
        train(root, plan, "one")
        train(root, plan, "three", world_size=3)
        train(root, plan, "floats", recipe=recipes.floats)
    return folder


@pytest.fixture
def folder(tmp_path):
    """A root with a run of three ranks over photos@1, and another dataset."""
    with loader.Root(tmp_path / "root") as root:
        view = write_photos(root).select("jpg", "cls")
        train(root, loader.plan({"photos": view}, seed=3, global_batch=BATCH), "three", world_size=3)
        write_photos(root, "others", numbers=range(20, 24))
    return tmp_path / "root"


@pytest.fixture
def step_facts(folder):
    """(digests by rank, loss) of a step, as the trail has them."""
    with loader.Root(folder) as root:
        trail = loader.read_trail(root, "three")

    def read_step(step):
        rows = trail.steps.filter(trail.steps["step"] == step)
        return rows["digest"].to_list(), rows["note.loss"][0]

    return read_step


DOWN = (500, 503, "drop", "refused", "commit-stall")
"""Ways of a store to be down: answers, none, no connection, and silence until the client gives up."""


class Bucket:
    """An S3 server with a root that has the run `one` of six steps; it can be taken down, or fall silent."""

    url = "s3://bucket/root"

    def __init__(self, start, origin):
        self._start, self.origin, self._speaks = start, origin, threading.Event()
        self._begun = threading.Event()
        self._speaks.set()
        self.server = start(self._answer)

    @property
    def requests(self):
        """Requests that arrived, since it was last refused."""
        return self.server.requests

    def fail(self, how):
        """Let every request meet a fault; None for none."""
        self.server.fault_of = lambda _: how

    def _answer(self, request):
        if not self._speaks.is_set():
            self._begun.set()
            assert self._speaks.wait(PATIENCE_S)
        return self.origin(request)

    def options(self, **more):
        """Options of a store there; each request is made once."""
        return {
            "key": "k",
            "secret": "s",
            "endpoint": self.server.endpoint,
            "retry_deadline_s": 0,
            "timeout_s": 20,
            **more,
        }

    @contextmanager
    def down(self, how):
        """Let it be down meanwhile: one of `DOWN`."""
        if how == "refused":
            self.server.close()
            try:
                yield
            finally:
                self.server = self._start(self._answer, port=self.server.port)
        else:
            self.fail(how)
            yield
            self.fail(None)

    @contextmanager
    def silent(self):
        """Let it answer nothing until `speak`; yields an event: a request waits."""
        self._begun.clear()
        self._speaks.clear()
        try:
            yield self._begun
        finally:
            self.speak()

    def speak(self):
        self._speaks.set()


@pytest.fixture(scope="session")
def bucket_objects(shared):
    """Objects of a bucket with a root."""
    origin = shared("servers/s3").SmallS3("bucket")
    origin.page_keys = 1000
    bucket = Bucket(shared("servers/http").HttpServer, origin)
    with loader.Root(bucket.url, options=bucket.options()) as root:
        view = write_photos(root).select("jpg", "cls")
        train(root, loader.plan({"photos": view}, seed=3, global_batch=BATCH), "one")
    bucket.server.close()
    return origin.held()


@pytest.fixture
def bucket(shared, bucket_objects):
    """A `Bucket`."""
    origin = shared("servers/s3").SmallS3("bucket")
    origin.page_keys = 1000
    origin.objects.update(bucket_objects)
    made = Bucket(shared("servers/http").HttpServer, origin)
    yield made
    made.server.close()
