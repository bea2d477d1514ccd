"""`python -m benchmarks.cluster.hashing`: two threads that hash at the priority of near checkpoints, until killed."""

import hashlib
import threading

from loader.cores import lower_thread_priority

THREADS = 2
"""A rank and its server each have about one at work for a near checkpoint."""
BLOCK_BYTES = 2**22
"""Blocks of near checkpoints."""


def main() -> None:
    """Hash without an end."""
    threads = [threading.Thread(target=_hash_blocks) for _ in range(THREADS)]
    for thread in threads:
        thread.start()


def _hash_blocks() -> None:
    lower_thread_priority()
    block = bytes(BLOCK_BYTES)
    while True:
        hashlib.sha256(block).digest()  # without the interpreter's lock


if __name__ == "__main__":
    main()
