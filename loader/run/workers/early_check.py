"""Check that worker processes can make a recipe's batches, before the training starts."""

from ...lazy_imports import without_collector
from ..recipe.recipe import Recipe


def bytes_sent(recipe: Recipe) -> int:
    """Return the bytes that each worker process is sent, and start the server that forks workers.

    Raises: Unpicklable, InvalidRuntime.
    """
    with without_collector():
        from .fork_server import prepare
        from .pool import WorkerPool  # noqa: F401 - the executor needs it next: imported here without the collector
        from .startup_message import check_can_be_sent, libraries

    nbytes = check_can_be_sent(recipe)
    prepare(libraries(recipe))  # imports modules while training starts
    return nbytes
