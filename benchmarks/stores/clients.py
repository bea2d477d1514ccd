"""One client of S3 in a process of its own: ranges of one object, by so many threads at once.

python -m benchmarks.stores.clients NAME        a name of CLIENTS; the protocol is that of benchmarks/contestant.py
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from .. import meter
from ..contestant import serve
from .servers import BUCKET, KEY, SECRET

Read = Callable[[int, int], bytes]
"""(offset, nbytes) -> those bytes; called by many threads at once."""
REGION = "us-east-1"


def penstock(endpoint: str, key: str, authority: str) -> Read:
    """`get_range` of the facade: with its checks, retry budget, limit and counting."""
    from loader.storage import open_store

    options = {"endpoint_url": endpoint, "key": KEY, "secret": SECRET}
    store = open_store(f"s3://{BUCKET}", options | ({"root_certificate": authority} if authority else {}))
    return lambda offset, nbytes: store.get_range(key, offset, nbytes).data


def obstore(endpoint: str, key: str, authority: str) -> Read:
    """Bare, by its sync functions."""
    import obstore as module

    store = _obstore(endpoint, authority)
    return lambda offset, nbytes: module.get_range(store, key, start=offset, length=nbytes).to_bytes()


def _obstore(endpoint: str, authority: str) -> Any:
    from obstore.store import S3Store

    trust: Any = {"root_certificate": authority} if authority else {"allow_http": True}
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region=REGION,
        client_options=trust,
    )


def s3fs(endpoint: str, key: str, _: str) -> Read:
    """`cat_file` with a start and an end, from threads; its own event loop does the work."""
    import s3fs as module

    fs = module.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=endpoint)
    path = f"{BUCKET}/{key}"
    return lambda offset, nbytes: bytes(fs.cat_file(path, start=offset, end=offset + nbytes))


def boto3(endpoint: str, key: str, _: str) -> Read:
    """`get_object` with a range, and as many connections as threads."""
    import boto3 as module
    from botocore.config import Config

    client = module.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(max_pool_connections=64),
    )

    def read(offset: int, nbytes: int) -> bytes:
        answer = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={offset}-{offset + nbytes - 1}")
        return bytes(answer["Body"].read())

    return read


CLIENTS: dict[str, Callable[[str, str, str], Read]] = {
    "penstock": penstock,
    "obstore": obstore,
    "s3fs": s3fs,
    "boto3": boto3,
}
"""Name -> (endpoint, key, the certificate in PEM that the server's is signed by, or "" without TLS) -> how to read."""
TLS_CLIENTS = ("penstock", "obstore")
"""The clients that take a certificate authority as text."""


class Client:
    """Answers requests of benchmarks/contest.py."""

    def __init__(self, name: str) -> None:
        self.make = CLIENTS[name]

    def open(
        self, endpoint: str, key: str, nbytes: int, expected: str, authority: str = ""
    ) -> dict[str, Any]:
        """Connect, and read once what must be there: hexadecimal bytes at the object's end."""
        self.read, self.nbytes = self.make(endpoint, key, authority), nbytes
        end = bytes.fromhex(expected)
        found = self.read(nbytes - len(end), len(end))
        return {} if found == end else {"error": f"it read {found.hex()} where {expected} lies"}

    def turn(self, concurrency: int, size: int, seconds: float) -> dict[str, Any]:
        """Ranges at random places for so long."""
        counts = [0] * concurrency
        begin, end = threading.Barrier(concurrency + 1), threading.Event()

        def work(thread: int) -> None:
            random, done = Random(thread), 0
            begin.wait()
            while not end.is_set():
                if len(self.read(random.randrange(self.nbytes - size), size)) != size:
                    raise ValueError("a range came short")
                done += 1
            counts[thread] = done

        threads = [threading.Thread(target=work, args=(number,)) for number in range(concurrency)]
        for thread in threads:
            thread.start()
        begin.wait()
        cpu, start = meter.cpu_s(os.getpid()), time.perf_counter()
        time.sleep(seconds)
        end.set()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - start
        return {"samples": sum(counts), "seconds": took, "cpu_s": meter.cpu_s(os.getpid()) - cpu}

    def close(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    serve(lambda: Client(sys.argv[1]))
