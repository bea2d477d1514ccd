"""Which torch may open what a store holds: `weights_only=True` did not hold in every release.

Code ran out of such a file before 2.6 (CVE-2025-32434), and memory was overwritten before 2.10 (CVE-2026-24747).
pyproject.toml has the same bound; who installed another torch in spite of it is told here.
"""

import re

import torch

from loader.errors import MissingDependency

LEAST = (2, 10)


def check_torch() -> None:
    """Raises: MissingDependency for a torch that is too old, or does not say how old it is."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or (int(found[1]), int(found[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise MissingDependency(
            f"torch {torch.__version__} is installed, and a checkpoint that somebody changed can run code in it when "
            f"it is loaded (CVE-2025-32434, CVE-2026-24747); accepted: {least} or newer: pip install 'torch>={least}'"
        )
