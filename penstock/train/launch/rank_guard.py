"""Become a command that holds a lock while it lives, and that the kernel kills with its parent.

    python -IS rank_guard.py LOCK PARENT COMMAND ...

PARENT: number of the parent process, or 0 for the process that an outer guard became. Run by its path, with nothing but
the standard library, it takes 20 ms. A shell's children inherit the lock.
"""

import ctypes
import fcntl
import os
import signal
import sys

PARENT = "PENSTOCK_PARENT_PID"
"""Variable of the process that an outer guard became."""
PR_SET_PDEATHSIG = 1
LEAST_DESCRIPTOR = 200
"""Scripts use small numbers for files of their own."""


def main() -> None:
    """Run the command of the arguments in this process."""
    lock, parent, *command = sys.argv[1:]
    opened = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    inherited = fcntl.fcntl(opened, fcntl.F_DUPFD, LEAST_DESCRIPTOR)  # without close-on-exec
    # Shared: all ranks hold it, and a launcher asks for it exclusively.
    fcntl.flock(inherited, fcntl.LOCK_SH)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # After prctl: a parent that ended just before sends no signal any more.
    if os.getppid() != (int(parent) or int(os.environ[PARENT])):
        sys.exit("penstock: the launcher of this process has ended")
    os.environ[PARENT] = str(os.getpid())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
