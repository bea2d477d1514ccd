"""Replay of a plan from indexes alone, for slots and digests: no media are read, no decoder is called."""

import loader


def index_replay(plan: loader.Plan, ledger: loader.Root | None, epochs: int | None) -> loader.Replay:
    """Return a replay that reads no media: a packed plan alone needs decoders, which are not called.

    ledger: Root of the ledger; None lays no substitutes in. epochs: as the training's Loader.
    """
    return loader.Replay(
        plan,
        () if ledger is None else loader.read_ledger(ledger, plan),
        decode=plan.pack is not None,
        framework="numpy",
        epochs=epochs,
    )
