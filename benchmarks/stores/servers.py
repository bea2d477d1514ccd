"""The servers: nginx, which reads files and nothing else, and Ceph with its objects in memory."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from loader.storage import Store, open_store
from tests.servers.certificates import write_certificates
from tests.servers.ports import free_port

from ..contest import ROOT

BUCKET = "bucket"
KEY, SECRET = "benchmarks", "benchmarkssecret"
CEPH_GIB = 16
"""Of memory, at most, for its objects."""
START_CEPH = ROOT / "scripts" / "start-ceph.sh"
NGINX = """
daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 10000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}{tls}; root {folder}/www; }}
}}
"""
TLS = " ssl; ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key"


class NoServer(Exception):
    """What is not installed, and what brings it."""


@contextmanager
def nginx(folder: Path, *, tls: bool = False) -> Iterator[tuple[str, Path, str]]:
    """(endpoint, the folder of its bucket, the certificate of its authority in PEM, "" without TLS).

    It takes a signature for nothing, and serves ranges. Raises: NoServer."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise NoServer("nginx is not installed: apt-get install nginx-light")
    bucket = folder / "www" / BUCKET
    bucket.mkdir(parents=True)
    for above in (folder, folder / "www", bucket):
        above.chmod(0o755)  # its workers are another user's where root starts it
    port = free_port()
    settings = folder / "nginx.conf"
    authority = write_certificates(folder) if tls else ""
    settings.write_text(NGINX.format(folder=folder, port=port, tls=TLS.format(folder=folder) if tls else ""))
    server = subprocess.Popen([program, "-p", str(folder), "-c", str(settings)], stderr=subprocess.DEVNULL)
    try:
        _listening(port)
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}", bucket, authority
    finally:
        server.terminate()
        server.wait()


@contextmanager
def ceph(folder: Path) -> Iterator[str]:
    """The endpoint of a fresh one, with its data in memory. One that does not begin is begun again, once.

    Raises: NoServer."""
    if shutil.which("radosgw") is None:
        raise NoServer("radosgw is not installed: scripts/install-ceph.sh")
    try:
        port = _start_ceph(folder)
    except subprocess.SubprocessError:
        subprocess.run([START_CEPH, "--stop", folder], check=True, timeout=60)
        shutil.rmtree(folder)
        try:
            port = _start_ceph(folder)
        except subprocess.SubprocessError as error:
            raise NoServer(f"Ceph does not begin: {error}") from error
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([START_CEPH, "--stop", folder], check=True, timeout=60)


def _start_ceph(folder: Path) -> int:
    port = free_port()
    command = [START_CEPH, folder, str(port), KEY, SECRET]
    environment = {**os.environ, "CEPH_GIB": str(CEPH_GIB)}
    subprocess.run(command, check=True, timeout=180, stdout=subprocess.DEVNULL, env=environment)
    return port


def store_of(endpoint: str, prefix: str) -> Store:
    """A prefix of the bucket."""
    return open_store(f"s3://{BUCKET}/{prefix}", {"endpoint_url": endpoint, "key": KEY, "secret": SECRET})


SHARED, APART = "shared", "apart"


@contextmanager
def cores(way: str) -> Iterator[list[str]]:
    """What goes before a client's command. SHARED: server and client have both cores, and what one takes the other
    lacks. APART: Ceph has the first alone and the client the second, as on machines of their own."""
    ours = sorted(os.sched_getaffinity(0))
    try:
        _give_ceph(ours[:1] if way == APART else ours)
        yield ["taskset", "-c", str(ours[-1])] if way == APART else []
    finally:
        _give_ceph(ours)


def _give_ceph(cpus: Sequence[int]) -> None:
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and (process / "comm").read_text().startswith(("radosgw", "ceph-")):
                for thread in (process / "task").iterdir():
                    os.sched_setaffinity(int(thread.name), cpus)


def memory_touched(nbytes: int) -> None:
    """Take so much of the machine's memory, as far as it has it, and let it go. The host of a virtual machine takes
    back what is free for a few seconds, and whoever needs it next waits until he has it again: up to 3 s per GiB."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    there = next(int(words[1]) for words in lines if words[0] == "MemAvailable:") * 1024
    taken = f"import mmap; mmap.mmap(-1, {min(nbytes, there * 3 // 4)}, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE)"
    subprocess.run([sys.executable, "-c", taken], check=True, timeout=300)


def freed(folder: Path) -> None:
    """Let Ceph give back the memory of what was deleted, which it does after two hours by itself."""
    subprocess.run(
        ["radosgw-admin", "gc", "process", "--include-all"],
        env=os.environ | {"CEPH_CONF": str(folder / "ceph.conf")},
        check=True,
        timeout=180,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _listening(port: int, within_s: float = 10) -> None:
    until = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until:
                raise NoServer(f"nothing listens on port {port} after {within_s:g} s") from None
            time.sleep(0.02)
        else:
            return
