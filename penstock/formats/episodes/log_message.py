"""A message of a log as its file has it, and the limits of what is read from one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from loader.errors import Corrupt, MissingDependency, PenstockError
from loader.modalities.error_origin import is_of_the_machine

MAX_FIELD_BYTES = 2**30
"""Largest field."""
MAX_EPISODE_BYTES = 4 * 2**30
"""Largest sum of a sample's fields, which are in memory together."""
MAX_CHUNK_BYTES = 2**28
"""Largest chunk of a file: a few bytes of a packed one can declare any size."""
MAX_LEAVES = 4096
"""Most values of a message that become fields."""


class Channel(NamedTuple):
    """Facts that all messages of a topic share."""

    topic: str
    """Its name, as the log has it."""
    encoding: str
    """Encoding of the messages: "json", "protobuf", "cdr", "ros1"."""
    type_name: str
    """Name of the messages' type; "" for none."""
    schema_encoding: str
    """Encoding of the schema: "jsonschema", "protobuf", "ros2msg", "ros2idl", "ros1msg"; "" for none."""
    schema: bytes
    """Definition of the type."""


class LogMessage(NamedTuple):
    """A message."""

    channel: Channel
    """Its topic."""
    log_time: int
    """Nanoseconds, Unix time, when it was recorded."""
    data: bytes
    """Its bytes."""


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Turn what libraries say against bytes into Corrupt with their name. Errors of this machine pass.

    Raises: Corrupt; StoreError.
    """
    try:
        yield
    except PenstockError:
        raise
    except ImportError as error:
        raise MissingDependency(
            f"logs of robots are read by mcap, rosbags and protobuf: pip install 'penstock-data[mcap]' ({error})"
        ) from error
    except Exception as error:  # of three libraries, and of definitions that the file itself has
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{where}: {type(error).__name__}: {error}; repair it, or move it elsewhere") from error
