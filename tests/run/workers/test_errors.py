"""What goes wrong in a worker process is said as if it had gone wrong in a thread."""

import functools

import pytest

import loader
from loader.errors import DecodeFailed, Throttled, TooManyCorrupt, TransformFailed, Unpicklable, WorkerFailed
from loader.run.ledger import read_ledger
from tests.refusals import refusal


@pytest.fixture(scope="module")
def root(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("errors") / "root"))
    samples.write(root, "photos", range(30), part_samples=11, fields=("cls", "txt"))
    return root


@pytest.fixture(scope="module")
def plan(root):
    return loader.plan({"photos": root.open("photos@1")}, seed=8, global_batch=5)


def find_step(plan, number):
    return next(s for s in range(9) if any(key.endswith(f"/{number:03d}") for _, key in plan.batch_ids(s)))


def read_until_error(plan, step, options):
    """(digests of the batches before the error's step, the error)."""
    with loader.Loader(plan, 0, 1, on_corrupt="raise", framework="numpy", **options) as batches:
        got = [next(batches).digest for _ in range(step)]
        with pytest.raises(BaseException) as caught:
            next(batches)
        batches.seek(step + 1)
        return [*got, next(batches).digest], caught.value


PROCESSES = {"executor": "processes", "workers": 1}


@pytest.mark.parametrize(
    ("kind", "wanted"), [("throttled", Throttled), ("memory", MemoryError), ("corrupt", DecodeFailed)]
)
def test_errors_of_a_decoder(plan, in_workers, kind, wanted):
    """At the turn of their own step, with type, words, address and notes; the steps around it are made."""
    decoder = in_workers.FailingDecoder(7, kind)
    results = [
        read_until_error(plan, find_step(plan, 7), {"decode": {"cls": decoder}, **how})
        for how in (PROCESSES, {"executor": "threads", "workers": 1})
    ]
    (got, error), (same, wanted_error) = results
    assert got == same
    assert type(error) is type(wanted_error) is wanted
    assert str(error) == str(wanted_error)
    assert (
        error.__notes__ == wanted_error.__notes__
        if kind != "corrupt"
        else "sample 'photos/007'" in str(error)
    )
    assert "worker_transforms.py" in str(error.__cause__) or kind == "corrupt", "where it was raised"


def test_errors_of_a_transform(plan, in_workers):
    transform = functools.partial(in_workers.failing, number=7)
    _, error = read_until_error(plan, find_step(plan, 7), {"transform": transform, **PROCESSES})
    _, wanted = read_until_error(plan, find_step(plan, 7), {"transform": transform, "workers": 1})
    assert type(error) is TransformFailed
    assert str(error) == str(wanted)
    assert "raised KeyError on photos@1/" in str(error)


@pytest.mark.parametrize(
    ("kind", "wanted", "words"),
    [
        ("awkward", WorkerFailed, "raised AwkwardExit: one and two"),
        ("local", WorkerFailed, "raised LocalExit: held"),
        ("exit", SystemExit, "3"),
    ],
)
def test_errors_that_cannot_be_sent_come_in_words(plan, in_workers, kind, wanted, words):
    transform = functools.partial(in_workers.raise_base_exception, number=7, kind=kind)
    _, error = read_until_error(plan, find_step(plan, 7), {"transform": transform, **PROCESSES})
    assert type(error) is wanted
    assert words in str(error)


def test_field_that_cannot_be_sent(plan, in_workers):
    with loader.Loader(plan, 0, 1, transform=in_workers.unsendable, **PROCESSES) as batches:
        for _ in range(2):
            with refusal(Unpicklable, what="bad", given="AttributeError"):
                next(batches)


def test_substitutions_reach_the_ledger_and_the_budget(root, plan, in_workers):
    decoder = in_workers.FailingDecoder(7, "corrupt")
    seen = {}
    for name, how in (("processes", PROCESSES), ("threads", {"executor": "threads", "workers": 2})):
        with loader.Loader(
            plan, 0, 1, decode={"cls": decoder}, steps=8, corrupt_budget=0.5, **how
        ) as batches:
            made = list(batches)
        seen[name] = [(batch.ids, batch.digest, batch.substitutions) for batch in made]
        assert batches.metrics()["substituted_total"] == sum(bool(batch.substitutions) for batch in made) > 0
    assert seen["processes"] == seen["threads"]
    listed = [one for _, _, some in seen["processes"] for one in some]
    assert read_ledger(root, plan) == listed
    with (
        loader.Loader(plan, 0, 1, decode={"cls": decoder}, corrupt_budget=0, **PROCESSES) as batches,
        refusal(TooManyCorrupt, what="corrupt_budget", where="step 2", given=1, accepted=0),
    ):
        list(batches)
