"""Messages of a robot log, and limits on what is read from one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from loader.errors import Corrupt, MissingDependency, PenstockError
from loader.modalities.fields import is_of_the_machine

MAX_FIELD_BYTES = 2**30
"""Limit on a field, in bytes."""
MAX_EPISODE_BYTES = 4 * 2**30
"""Limit on a sample, in bytes; all of it is in memory at once."""
MAX_CHUNK_BYTES = 2**28
"""Limit on a decompressed chunk, in bytes: a small chunk can declare any size."""
MAX_LEAVES = 4096
"""Limit on the number of values in a message that become fields."""


class LogChannel(NamedTuple):
    """Properties shared by all messages of a topic."""

    topic: str
    """Topic name in the log."""
    encoding: str
    """"json", "protobuf", "cdr" or "ros1"."""
    type_name: str
    """Name of the message type; "" if none."""
    schema_encoding: str
    """"jsonschema", "protobuf", "ros2msg", "ros2idl", "ros1msg" or ""."""
    schema: bytes
    """Definition of the message type."""


class LogMessage(NamedTuple):
    """One recorded message."""

    channel: LogChannel
    """Channel that it was recorded on."""
    log_time: int
    """Recording time, in Unix nanoseconds."""
    data: bytes
    """Encoded content."""


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Turn log libraries' errors into `Corrupt` with the file's name; the machine's own errors pass through."""
    try:
        yield
    except PenstockError:
        raise
    except ImportError as error:
        raise MissingDependency(
            f"logs of robots are read by mcap, rosbags and protobuf: pip install 'penstock-data[mcap]' ({error})"
        ) from error
    except Exception as error:  # raised by three libraries, and by definitions in the file
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{where}: {type(error).__name__}: {error}; repair it, or move it elsewhere") from error
