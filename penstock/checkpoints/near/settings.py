"""Check the settings of near checkpoints."""

import loader
from loader.errors import InvalidRuntime
from loader.keywords import check_whole_number


def check_near_settings(near: "loader.NodeCache | None", near_every: int | None) -> None:
    """Raise InvalidRuntime for settings that `Checkpoints(near=..., near_every=...)` does not accept."""
    if near_every is not None:
        check_whole_number("near_every", near_every, 1)
        if near is None:
            raise InvalidRuntime(
                'near_every without near: pass near=run.node_cache("/nvme/penstock"), or neither',
                what="near",
                where="near_every",
                accepted="a node cache with peers",
            )
    if near is None:
        return
    if not isinstance(near, loader.NodeCache):
        raise InvalidRuntime(
            f"near = {near!r}; accepted: loader.NodeCache(path=..., peers=...), or None",
            what="near",
            given=near,
            accepted="loader.NodeCache(path=..., peers=...), or None",
        )
    if near.peers is None:
        raise InvalidRuntime(
            f"near = the cache of {near.path} without peers: a near checkpoint lies on two nodes. Pass "
            "near=run.node_cache(path), or loader.NodeCache(path=path, peers=...)",
            what="peers",
            where=near.path,
            accepted="a cache of two nodes",
        )
    if near.shared:
        raise InvalidRuntime(
            f"near = the cache of {near.path} with shared=True: other users of this machine could replace the weights. "
            "Use a folder of this user",
            what="shared",
            where=near.path,
            given=True,
            accepted=False,
        )
