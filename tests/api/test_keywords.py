"""Arguments of torch's DataLoader, where penstock has others, and names that `dir` shows."""

import inspect
import pickle

import pytest

import loader
from loader.keywords import LOADER_WORDS, PLAN_WORDS


@pytest.fixture
def plan():
    return loader.plan({"d": loader.synthetic(8)}, seed=1, global_batch=2)


@pytest.mark.parametrize("word", sorted(LOADER_WORDS))
def test_loader_names_its_own_argument_for_one_of_torch(plan, word):
    with pytest.raises(TypeError, match=rf"^Loader\(\) has no argument '{word}': ") as raised:
        loader.Loader(plan, 0, 1, **{word: 4})
    assert LOADER_WORDS[word] in str(raised.value)
    assert word not in inspect.signature(loader.Loader).parameters


@pytest.mark.parametrize("word", sorted(PLAN_WORDS))
def test_plan_names_its_own_argument_for_one_of_torch(word):
    with pytest.raises(TypeError, match=rf"^plan\(\) has no argument '{word}': "):
        loader.plan({"d": loader.synthetic(8)}, seed=1, global_batch=2, **{word: 4})
    assert word not in inspect.signature(loader.plan).parameters


def test_loader_names_the_closest_argument_for_a_typo(plan):
    with pytest.raises(TypeError, match=r"Loader\(\) has no argument 'wrokers', did you mean 'workers'\?"):
        loader.Loader(plan, wrokers=4)
    with pytest.raises(
        TypeError, match=r"plan\(\) has no argument 'gloabl_batch', did you mean 'global_batch'\?"
    ):
        loader.plan({}, seed=1, gloabl_batch=2)
    with pytest.raises(TypeError, match=r"Loader\(\) has no argument 'batch_size': "):
        loader.torch_dataset(plan, 0, 1, batch_size=4)


def test_explained_functions_keep_their_signature_and_pickle():
    assert list(inspect.signature(loader.Loader).parameters)[:3] == ["plan", "rank", "world_size"]
    assert pickle.loads(pickle.dumps(loader.plan)) is loader.plan  # noqa: S301 - our own


def test_dir_shows_public_names_alone():
    assert dir(loader) == sorted(loader.__all__)
