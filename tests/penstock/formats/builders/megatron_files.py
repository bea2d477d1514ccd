"""Megatron's files as its builder writes them, made here of documents: lists of sequences, lists of numbers each."""

import struct

import numpy as np

CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}


def index(word, documents, modes=None):
    """Bytes of the index. modes: of each sequence."""
    lengths = [len(sequence) for document in documents for sequence in document]
    pointers = [sum(lengths[:i]) * int(word[1:]) for i in range(len(lengths))]
    bounds = [0]
    for document in documents:
        bounds.append(bounds[-1] + len(document))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[word], len(lengths), len(bounds))
    arrays = [(lengths, "<i4"), (pointers, "<i8"), (bounds, "<i8"), (modes or [], "<i1")]
    return head + b"".join(np.array(values, dtype).tobytes() for values, dtype in arrays)


def data(word, documents):
    """Bytes of the tokens."""
    flat = [token for document in documents for sequence in document for token in sequence]
    return np.array(flat, f"<{word}").tobytes()


def fill(folder, stem, word, documents, modes=None):
    """Write a pair of files."""
    (folder / stem).parent.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.bin").write_bytes(data(word, documents))
    (folder / f"{stem}.idx").write_bytes(index(word, documents, modes))


def number_documents(n, first=0):
    """n documents of one sequence each."""
    return [[[first + i + k for k in range(i % 4)]] for i in range(n)]
