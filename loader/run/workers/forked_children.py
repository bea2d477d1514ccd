"""Stop signals of the children that a rank or worker forks, such as a DataLoader's workers or a Pool's."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.popen_fork import Popen
from typing import Any

from ...native import ignore_strangers, mark_ended, share_marks

Handler = Callable[[int, Any], Any] | int | signal.Handlers | None
"""Result of `signal.signal`; None for a handler that C code installed."""

_covered: dict[int, tuple[Handler, Handler]] = {}
"""Signal -> (handler of the covering process, handler of its children)."""
_covering_pid = 0
"""Process that called `cover_children`, also in its descendants."""
_is_registered = False
"""True once this process or an ancestor registered the hooks, which a fork inherits."""
_of_thread = threading.local()
_TORCH_MODULE = "torch.utils.data._utils.signal_handling"
_TORCH_FUNCTION = "_set_worker_signal_handlers"


def cover_children(own: Handler, instead: Mapping[signal.Signals, Handler]) -> None:
    """Let the children that this process forks ignore these signals, unless a relative sends them.

    A scheduler signals every process of a job, and the parent still needs its children for the step that it finishes.
    `Process.terminate()` of a parent, and signals of this process, end them. An orphan obeys everybody.

    own: this process's handler. It is for this process only: a child that inherited it would survive `terminate()`, and
        a `multiprocessing.Pool` would wait for it for ever.
    instead: signal -> handler that a child gets.

    A child that sets another handler keeps it. Without the C extension a child obeys everybody.
    """
    global _covering_pid, _is_registered
    if _covering_pid != os.getpid():
        _covering_pid = os.getpid()
        _covered.clear()  # of the process that forked this one
    if not _is_registered:
        _is_registered = True
        share_marks()
        _mark_ended_processes()
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
        )
    for number, handler in instead.items():
        _covered[number] = (own, signal.SIG_DFL if handler is None else handler)


def uncover_children(numbers: Iterable[signal.Signals]) -> None:
    """End `cover_children` of these signals for children that are forked from now on."""
    for number in numbers:
        _covered.pop(number, None)


def _before_fork() -> None:
    # A signal to a child that still has the parent's handler would be lost.
    _of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _covered)
    _of_thread.pid = os.getpid()


def _after_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _of_thread.mask)


def _after_in_child() -> None:
    # Not getppid(): if the parent has ended by now, this orphan would take its new parent for the old one.
    parent = _of_thread.pid
    is_child = parent == _covering_pid
    for number, (own, instead) in _covered.items():
        current = signal.getsignal(number)
        if is_child and current == own:
            signal.signal(number, instead)
        elif is_child or current != instead:
            continue  # the user's code set another handler
        ignore_strangers(number, parent, _covering_pid)
        if number == signal.SIGTERM:
            _cover_torch_worker(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, _of_thread.mask)


def _mark_ended_processes() -> None:
    """Mark a process of multiprocessing before it gets a signal of its parent.

    The kernel merges it with a stranger's signal that is still pending, and the child sees only the stranger. A Pool
    and a DataLoader end their processes by `_send_signal`. multiprocessing has no public hook.

    The mark goes with the process: a later child with its number would obey strangers. A Pool waits for ever for the
    task of a child that a stranger ended.
    """
    popen: Any = Popen
    launch = popen._launch
    poll = popen.poll
    send_signal = popen._send_signal

    def launch_unmarked(process: Any, target: Any) -> None:
        launch(process, target)
        mark_ended(process.pid, False)

    def send_marked_signal(process: Any, number: int) -> None:
        if process.returncode is None:
            mark_ended(process.pid, True)
        send_signal(process, number)

    def poll_and_unmark(process: Any, flag: int = os.WNOHANG) -> Any:
        was_running = process.returncode is None
        code = poll(process, flag)
        if was_running and code is not None:
            mark_ended(process.pid, False)
        return code

    popen._launch = launch_unmarked
    popen.poll = poll_and_unmark
    popen._send_signal = send_marked_signal


def _cover_torch_worker(parent: int) -> None:
    """Cover this process again after torch's DataLoader sets its own handler of SIGTERM in it.

    That handler ends a worker by any signal of another process than the parent, and the parent then raises
    "DataLoader worker is killed by signal: Terminated". torch has no public hook between the two.
    """
    module = sys.modules.get(_TORCH_MODULE)
    set_handlers = getattr(module, _TORCH_FUNCTION, None)
    if set_handlers is None or getattr(set_handlers, "__module__", "") == __name__:
        return

    def set_handlers_and_cover() -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            set_handlers()
            ignore_strangers(signal.SIGTERM, parent, _covering_pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    setattr(module, _TORCH_FUNCTION, set_handlers_and_cover)
