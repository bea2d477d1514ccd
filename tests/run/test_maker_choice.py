"""The maker that `auto` takes: a pure function of the lock's probe, the cores and the stages of a stretch of a run.

The photos, tokens and latents are figures of one node: 16 cores, an H200, JPEGs of 256 x 256 px decoded and cropped,
rows of 8 and of 32 KB. In samples/s it made 4,204 photos with 4 threads, 2,738 with 16, and 15,430 with 16 processes;
313,045 tokens with 2 threads and 129,146 with 16; 77,706 latents with 2 threads and 36,331 with 16.
"""

from dataclasses import replace

import pytest

from loader.run.maker_choice import Maker, Room, Stages, better_maker, first_threads

NODE = Room(cores=16, processes=16, threads=True, local=True, caller=True)
TWO = replace(NODE, cores=2, processes=2)
PHOTOS = Stages(wait_share=0.97, compute_share=0.02, decode_share=0.93, fetch_share=0.02, load=2.5, cores=2.6)
"""Of an idle training, with 4 threads."""
COPIES = Stages(wait_share=0.97, compute_share=0.02, decode_share=0.0, fetch_share=0.87, load=1.5, cores=1.6)
"""Tokens and latents of an idle training."""


def threads(number):
    return Maker("threads", number)


@pytest.mark.parametrize(
    ("locked", "room", "stages", "now", "better"),
    [
        # Photos on the node: whatever the training does, if it has to wait, or shares the lock with much decoding.
        (0.02, NODE, PHOTOS, threads(4), Maker("processes", 16)),
        (0.6, NODE, replace(PHOTOS, wait_share=0.3), threads(4), Maker("processes", 16)),
        # ResNet-50 waited for nothing and lost 27 % inside its steps of 74.8 ms: 256 photos of 0.6 ms of a core each.
        (0.05, NODE, replace(PHOTOS, wait_share=0.02, load=2.05), threads(4), Maker("processes", 16)),
        # A large model that takes 16 photos in a second loses nothing to threads.
        (0.05, NODE, replace(PHOTOS, wait_share=0.0, load=0.01), threads(4), None),
        (0.0, replace(NODE, cores=3, processes=3), PHOTOS, threads(3), Maker("processes", 3)),
        # A rank whose memory has room for two workers only: four threads make more, but slow a training that works.
        (0.0, replace(NODE, processes=2), PHOTOS, threads(4), None),
        (0.0, replace(NODE, processes=2), replace(PHOTOS, wait_share=0.5), threads(4), Maker("processes", 2)),
        # Where the store is what is waited for, decoders elsewhere gain nothing.
        (
            0.0,
            replace(NODE, local=False),
            replace(PHOTOS, decode_share=0.3, fetch_share=0.6),
            threads(4),
            None,
        ),
        # A transform that cannot be sent: threads, but no more than gain from each other.
        (0.0, replace(NODE, processes=0), PHOTOS, threads(16), threads(4)),
        (0.0, replace(NODE, processes=0), PHOTOS, threads(4), None),
        (0.0, replace(NODE, processes=0, threads=False), PHOTOS, threads(16), None),
        # Two cores: threads, unless the training computes in Python. Beside 13 ms of it, processes made 64 batches/s
        # and threads 31; an idle training got 8 % less by processes (processor time of a batch: 12.8 and 14.0 ms).
        (0.02, TWO, PHOTOS, threads(2), None),
        (0.14, TWO, PHOTOS, threads(2), None),  # a machine with other work: nobody held the lock
        (0.56, TWO, replace(PHOTOS, wait_share=0.29), threads(2), Maker("processes", 2)),
        (0.9, TWO, replace(PHOTOS, wait_share=0.01, load=0.9), threads(2), Maker("processes", 2)),
        (
            0.9,
            TWO,
            replace(PHOTOS, wait_share=0.01, load=0.1, cores=1.1),
            threads(2),
            None,
        ),  # it is hardly disturbed
        # Other programs leave a third of a core, of which decoding takes 40 %.
        (0.5, TWO, replace(PHOTOS, wait_share=0.0, load=0.13, cores=0.32), threads(2), Maker("processes", 2)),
        (
            0.1,
            TWO,
            replace(PHOTOS, wait_share=0.5, load=0.9),
            threads(2),
            None,
        ),  # it sleeps, or waits for a GPU
        # 300 short calls without the lock in a step, as of a GPU's kernels: 129 batches/s by processes, 69 by threads.
        (
            0.0,
            TWO,
            replace(PHOTOS, wait_share=0.4, compute_share=0.4, load=0.9),
            threads(2),
            Maker("processes", 2),
        ),
        (
            0.0,
            TWO,
            replace(PHOTOS, wait_share=0.05, compute_share=0.6, load=0.9),
            threads(2),
            Maker("processes", 2),
        ),
        (
            0.0,
            TWO,
            replace(PHOTOS, wait_share=0.05, compute_share=0.6, load=0.1, cores=1.1),
            threads(2),
            None,
        ),
        (
            0.0,
            TWO,
            replace(PHOTOS, wait_share=0.7, compute_share=0.05, load=0.28, cores=0.34),
            threads(2),
            Maker("processes", 2),
        ),
        (
            0.0,
            TWO,
            replace(PHOTOS, wait_share=0.55, compute_share=0.01, load=0.39, cores=0.4),
            threads(2),
            None,
        ),  # it sleeps
        (0.0, TWO, replace(COPIES, wait_share=0.4, compute_share=0.4), threads(2), None),
        # A decoder that holds the lock, with an idle training: two threads make 0.48 to 0.52 of what processes make.
        (0.0, TWO, replace(PHOTOS, cores=1.0), threads(2), Maker("processes", 2)),
        (0.9, TWO, replace(PHOTOS, cores=1.0, wait_share=0.6), threads(2), Maker("processes", 2)),
        (0.0, TWO, replace(PHOTOS, cores=1.0, wait_share=0.05, load=0.2), threads(2), None),  # fast enough
        (0.0, TWO, replace(PHOTOS, cores=1.0), threads(1), None),  # one thread uses one core
        (0.0, replace(TWO, processes=1), replace(PHOTOS, cores=1.0), threads(2), None),
        (0.0, replace(TWO, cores=1), replace(PHOTOS, cores=1.0), threads(2), None),
        # Other programs had a core: the threads were ready to use both.
        (0.08, TWO, replace(PHOTOS, cores=1.0, delayed=0.9), threads(2), None),
        (0.08, TWO, replace(PHOTOS, cores=0.48, delayed=1.53), threads(2), None),
        # Both at once: the threads use half a core, wait for another, and for the lock of one of them.
        (0.0, TWO, replace(PHOTOS, cores=0.5, delayed=0.5), threads(2), Maker("processes", 2)),
        (0.83, TWO, replace(PHOTOS, cores=0.57, delayed=1.29), threads(2), Maker("processes", 2)),
        # Copies: two threads at most, and processes only where the training starves them.
        (0.0, NODE, COPIES, threads(4), threads(2)),
        (0.0, NODE, replace(COPIES, cores=3.1), threads(16), threads(2)),
        (0.0, NODE, replace(COPIES, cores=0.4), threads(4), None),  # from a disk that is waited for
        (0.0, NODE, COPIES, threads(2), None),
        (0.0, TWO, COPIES, threads(2), None),
        (0.6, TWO, replace(COPIES, wait_share=0.3), threads(2), Maker("processes", 2)),
        # They save the training its wait for the lock, for which two are enough.
        (0.6, NODE, replace(COPIES, wait_share=0.3), threads(2), Maker("processes", 2)),
        (0.9, TWO, replace(COPIES, wait_share=0.02, load=0.05), threads(2), None),
        (
            0.0,
            replace(NODE, local=False),
            COPIES,
            threads(16),
            None,
        ),  # a bucket, which threads wait for
    ],
)
def test_choice_on_recorded_figures(locked, room, stages, now, better):
    chosen = better_maker(locked, room, stages, now)
    assert (chosen and chosen[0]) == better


TURNS = replace(COPIES, wait_share=0.5, cores=1.05)


@pytest.mark.parametrize(
    ("stages", "now", "room", "better"),
    [
        (TURNS, threads(2), TWO, threads(1)),
        (TURNS, threads(1), TWO, None),  # there is something to do beside the training
        (replace(TURNS, wait_share=0.95), threads(2), TWO, Maker("caller", 0)),
        (replace(TURNS, wait_share=0.95), threads(1), TWO, Maker("caller", 0)),
        (replace(TURNS, wait_share=0.95), threads(2), replace(TWO, caller=False), threads(1)),
        (replace(TURNS, wait_share=0.95), threads(1), replace(TWO, caller=False), None),
        (replace(TURNS, wait_share=0.05), threads(2), TWO, None),  # the training hardly waits
        (replace(TURNS, cores=0.5), threads(2), TWO, None),  # they wait for a disk, or for other programs
        (replace(TURNS, cores=1.6), threads(2), TWO, None),  # they work at the same time
        (
            replace(TURNS, decode_share=0.6, cores=1.6),
            threads(2),
            TWO,
            None,
        ),  # decoders let go of the interpreter
        (replace(TURNS, decode_share=0.6), threads(2), TWO, Maker("processes", 2)),  # decoders hold it
        (replace(TURNS, wait_share=0.95), threads(2), replace(TWO, threads=False), None),
        (replace(TURNS, wait_share=0.95), Maker("caller", 0), TWO, None),
        (replace(TURNS, wait_share=0.85), Maker("caller", 0), TWO, None),  # not to and fro
        (replace(TURNS, wait_share=0.7), Maker("caller", 0), TWO, threads(1)),
    ],
)
def test_choice_among_threads_that_take_turns(stages, now, room, better):
    chosen = better_maker(0.0, room, stages, now)
    assert (chosen and chosen[0]) == better


DISK = replace(NODE, more_threads=True)


@pytest.mark.parametrize(
    ("stages", "now", "room", "better"),
    [
        (replace(COPIES, cores=0.4), threads(2), DISK, threads(4)),
        (replace(COPIES, cores=0.4), threads(2), replace(DISK, cores=3), threads(3)),
        (replace(COPIES, cores=0.4), threads(4), DISK, None),
        (replace(COPIES, cores=0.4), threads(2), NODE, None),  # it had more before
        (replace(COPIES, cores=0.4, wait_share=0.05), threads(2), DISK, None),  # fast enough
        (replace(COPIES, cores=0.4, delayed=1.4), threads(2), DISK, None),  # other programs had the cores
        (replace(COPIES, cores=0.4, fetch_share=0.2), threads(2), DISK, None),
    ],
)
def test_choice_of_more_threads_for_copies_that_wait_for_a_disk(stages, now, room, better):
    chosen = better_maker(0.0, room, stages, now)
    assert (chosen and chosen[0]) == better


def test_choice_names_its_figures():
    assert (
        "93% of the work on batches, which keeps 2.5 of 16 cores busy"
        in better_maker(0.0, NODE, PHOTOS, threads(4))[1]
    )
    _, why = better_maker(0.56, TWO, replace(PHOTOS, wait_share=0.29), threads(2))
    assert "lock for 56% of the time" in why
    assert "29%" in why
    # Of a lock that is busy for 90 % of the time, a training that waits for 60 % holds 40 % at most.
    _, why = better_maker(0.9, TWO, replace(PHOTOS, wait_share=0.6), threads(2))
    assert "lock for 40% of the time" in why


@pytest.mark.parametrize(
    ("cores", "local", "copies", "number"),
    [
        (1, True, False, 1),
        (2, True, False, 2),
        (16, True, False, 4),
        (16, True, True, 2),
        (1, True, True, 1),
        (16, False, False, 16),
        (16, False, True, 16),
    ],
)
def test_first_threads_are_as_many_as_gain_from_each_other(cores, local, copies, number):
    assert first_threads(cores, local=local, copies=copies) == number
