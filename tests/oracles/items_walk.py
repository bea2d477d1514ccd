"""A dataset of another library as a source: its batches on several worlds, in processes, and after a resume.

Peers import this module in their own environments; it imports nothing but the loader.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import loader

STEPS = 5
BATCH = 10
MODULUS = 2**64


def make_plan(source):
    return loader.plan({"photos": source}, seed=7, global_batch=BATCH, allow_repeats=True)


def value_text(value):
    """Describe a value of a sample: type, dtype, shape and bytes."""
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(torch.as_tensor(value))
        return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return repr(value)


def sample_texts(batch):
    """Describe each sample of a rank's batch, in order."""
    texts = []
    for row in range(len(batch)):
        values = {field: value_text(batch[field][row]) for field in batch.fields}
        texts.append(json.dumps([batch.ids[row][1], values]))
    return texts


def read_steps(plan, world=1, state=None, n=STEPS, **options):
    """Return step -> [digest, samples] over all ranks; samples in the order of the global batch."""
    steps = {}
    for rank in range(world):
        with loader.Loader(plan, rank, world, steps=n, **options) as batches:
            if state is not None:
                batches.load_state_dict(state)
            for batch in batches:
                digest, texts = steps.get(batch.step, [0, []])
                steps[batch.step] = [(digest + batch.digest) % MODULUS, texts + sample_texts(batch)]
    return {str(step): steps[step] for step in sorted(steps)}


def stop_state(plan, n, **options):
    """Return the state of a training that is stopped after n steps."""
    with loader.Loader(plan, 0, 1, **options) as batches:
        for _ in range(n):
            next(batches)
        return batches.state_dict()


def walk_settings(source, **options):
    """Return setting -> step -> [digest, samples]."""
    plan = make_plan(source)
    state = stop_state(plan, 2, **options)
    return {
        "one rank": read_steps(plan, **options),
        "two ranks": read_steps(plan, 2, **options),
        "five ranks": read_steps(plan, 5, **options),
        "processes": read_steps(plan, workers=2, **options),
        "resumed": read_steps(plan, 2, state, **options),
    }


def print_walk(source, **options):
    """Print what `walk_settings` returns, and facts of the source, as a line of JSON."""
    view = source if hasattr(source, "fingerprint") else loader.items(source)
    facts = {"fingerprint": view.fingerprint, "length": len(view)}
    print(json.dumps({**facts, "settings": walk_settings(source, **options)}))


def same_batches(settings):
    """Check that all settings made the same batches; return step -> [digest, samples] of one rank."""
    alone = settings.pop("one rank")
    assert list(alone) == [str(step) for step in range(STEPS)]
    assert set(settings) == {"two ranks", "five ranks", "processes", "resumed"}
    resumed = settings.pop("resumed")
    assert resumed == {step: batch for step, batch in alone.items() if int(step) >= 2}
    for batches in settings.values():
        assert batches == alone
    return alone


def samples(batches):
    return [sample for _, texts in batches.values() for sample in texts]
