"""Shared by both front ends: excluding the samples in a basket, commands to copy, and daemon threads."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import loader

from ..upkeep.exclusion import exclude


def exclude_basket(
    root: loader.Root, samples: Iterable[tuple[str, str]], *, reason: str, by: str, page: str
) -> tuple[str, ...]:
    """Publish each dataset without the samples in the basket, and return the new versions' names. Raises: as `exclude`.

    samples: (version, key) pairs, looked up in each dataset's newest given version. page: address or command to record.
    """
    refs: dict[str, str] = {}
    keys: dict[str, list[str]] = defaultdict(list)
    for version, key in samples:
        dataset, _, number = version.partition("@")
        if dataset not in refs or int(number) > int(refs[dataset].partition("@")[2]):
            refs[dataset] = version
        keys[dataset].append(key)
    return tuple(
        exclude(root, ref, list(dict.fromkeys(keys[dataset])), reason=reason, by=by, page=page)[1].name
        for dataset, ref in refs.items()
    )


_ESCAPED = {"\\": "\\\\", "'": "\\'"}


def shell_command(root: str, *words: object, names: Sequence[object] = ()) -> str:
    """Return a `penstock` command line for a root. names: last arguments, which may begin with `-`."""
    after = ["--", *names] if names else []
    return " ".join(map(shell_word, ("penstock", *words, "--root", root, *after)))


def shell_word(word: object) -> str:
    """Return a word quoted for bash and zsh. Unprintable characters are escaped."""
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    return (
        "$'" + "".join(_ESCAPED.get(one) or (one if one.isprintable() else _code(one)) for one in text) + "'"
    )


def _code(character: str) -> str:
    n = ord(character)
    return f"\\x{n:02x}" if n < 0x80 else f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}"


P = ParamSpec("P")
T = TypeVar("T")


# Subclasses ThreadPoolExecutor because event loops accept no other executor. Its own threads would be joined at exit.
class DaemonThreads(ThreadPoolExecutor):
    """Executor that starts one daemon thread per call. Callers must bound the number of calls."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        Thread(target=_call, args=(future, fn, args, kwargs), name="penstock-view", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return without waiting."""


def _call(future: "Future[Any]", fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised where the future is waited for
        future.set_exception(error)
    else:
        future.set_result(result)
