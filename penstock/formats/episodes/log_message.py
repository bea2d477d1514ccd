"""Messages of a log, and limits on what is read from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from loader.errors import Corrupt, MissingDependency, PenstockError
from loader.modalities.fields import is_of_the_machine

MAX_FIELD_BYTES = 2**30
"""Limit on the bytes of a field."""
MAX_EPISODE_BYTES = 4 * 2**30
"""Limit on the bytes of a sample, which is in memory whole."""
MAX_CHUNK_BYTES = 2**28
"""Limit on a chunk: a few compressed bytes can declare any size."""
MAX_LEAVES = 4096
"""Limit on the values of a message that become fields."""


class LogChannel(NamedTuple):
    """Facts shared by all messages of a topic."""

    topic: str
    """Name of the topic in the log."""
    encoding: str
    """"json", "protobuf", "cdr" or "ros1"."""
    type_name: str
    """Name of the messages' type, or ""."""
    schema_encoding: str
    """"jsonschema", "protobuf", "ros2msg", "ros2idl", "ros1msg" or ""."""
    schema: bytes
    """Definition of the type."""


class LogMessage(NamedTuple):
    """A message."""

    channel: LogChannel
    """Its topic."""
    log_time: int
    """Time of recording, in Unix nanoseconds."""
    data: bytes
    """Its bytes."""


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Turn errors of the log libraries into Corrupt with the file's name; errors of this machine pass."""
    try:
        yield
    except PenstockError:
        raise
    except ImportError as error:
        raise MissingDependency(
            f"logs of robots are read by mcap, rosbags and protobuf: pip install 'penstock-data[mcap]' ({error})"
        ) from error
    except Exception as error:  # of three libraries, and of definitions in the file itself
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{where}: {type(error).__name__}: {error}; repair it, or move it elsewhere") from error
