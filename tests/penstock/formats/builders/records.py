"""Records and Examples as TensorFlow writes them, made here by hand."""

import struct

from google_crc32c import value as crc32c


def masked_crc(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data):
    head = struct.pack("<Q", len(data))
    return head + masked_crc(head) + data + masked_crc(data)


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def message(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values, packed=True):
    """A feature of bytes, floats or integers."""
    if values and isinstance(values[0], bytes):
        return message(1, b"".join(message(1, one) for one in values))
    if values and isinstance(values[0], float):
        flat = [struct.pack("<f", one) for one in values]
        return message(2, message(1, b"".join(flat)) if packed else b"".join(b"\x0d" + one for one in flat))
    flat = [varint(one % 2**64) for one in values]
    return message(3, message(1, b"".join(flat)) if packed else b"".join(b"\x08" + one for one in flat))


def example(features, packed=True):
    entries = (
        message(1, message(1, name.encode()) + message(2, feature(values, packed)))
        for name, values in features.items()
    )
    return message(1, b"".join(entries))
