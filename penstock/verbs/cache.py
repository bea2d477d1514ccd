"""`penstock cache serve|fill|ls`: pages that the nodes of a cluster keep for each other."""

import logging
from argparse import Namespace
from collections.abc import Sequence

import loader
from loader.errors import InvalidRuntime

from ..units import parse_size, size
from .verb import Answer, Table, Verb, argument, argument_type, flag, verb

_PATH = argument("--path DIR", "folder of the node cache, on a local disk", required=True)
_PEERS = argument(
    "--peers LIST",
    'servers of the cluster: HOST:PORT,HOST:PORT, "slurm", or "dns:NAME:PORT"',
    required=True,
)
_LIMIT = argument(
    "--limit SIZE",
    "most bytes of pages, such as 2TiB (default: half of the free space)",
    type=argument_type(parse_size),
)
_PAGE = argument("--page-bytes N", "page size, alike on all nodes", type=int, default=2**20)
_SHARED = flag("--shared", "let other users of the machine read and replace pages")


def _spec(arguments: Namespace, peers: str | None) -> "loader.NodeCache":
    return loader.NodeCache(
        path=arguments.path,
        limit_bytes=arguments.limit,
        page_bytes=arguments.page_bytes,
        shared=arguments.shared,
        peers=peers,
    )


@verb(
    "serve this node's pages to the other nodes; needs PENSTOCK_CACHE_TOKEN beyond this machine",
    _PATH,
    argument(
        "--listen HOST:PORT", "address to listen on (default: 127.0.0.1:7070)", default="127.0.0.1:7070"
    ),
    argument("--address HOST:PORT", "address that the peers use (default: --listen's)"),
    _LIMIT,
    _PAGE,
    _SHARED,
)
def serve(arguments: Namespace) -> Answer:
    """Serve until SIGINT or SIGTERM."""
    from loader.cache.peers.serve import ServeSettings, serve

    # A server runs unattended for weeks: only a time relates a warning to a training.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    serve(ServeSettings(cache=_spec(arguments, None), listen=arguments.listen, address=arguments.address))
    return {}, "", 0


@verb(
    "read the pages of a version that this node keeps; run it on each node",
    argument("ref", "e.g. photos@3"),
    _PATH,
    _PEERS,
    argument("--where SQL", "only pages with these samples"),
    _LIMIT,
    _PAGE,
    _SHARED,
)
def fill(arguments: Namespace) -> Answer:
    """Exit with 1 if pages could not be read."""
    from ..nodes.cache_fill import fill_pages

    version = loader.Root(arguments.root).open(arguments.ref)
    report = fill_pages(version, _spec(arguments, arguments.peers), arguments.where)
    text = (
        f"{report.version}: this node keeps {report.pages} pages, {size(report.nbytes)}; "
        f"{report.fetched} fetched now, {report.elsewhere} belong to other nodes, {report.refused} have no room"
    )
    return report._asdict(), text, 0


@verb(
    "list the nodes of a cluster's cache",
    _PEERS,
    argument("--path DIR", "folder of the node cache, for its token (default: PENSTOCK_CACHE_TOKEN)"),
)
def ls(arguments: Namespace) -> Answer:
    """Exit with 1 if a node does not answer."""
    from ..nodes.cache_status import node_statuses

    statuses = node_statuses(arguments.peers, arguments.path)
    # A DNS name without addresses is a typing error or an outage. An empty table would look like a healthy cluster.
    if not statuses:
        raise InvalidRuntime(f"--peers {arguments.peers} names no address; check the name and the network")
    rows: list[Sequence[object]] = []
    for status in statuses:
        if status.error:
            rows.append((status.address, "down", "", "", "", "", status.error))
            continue
        # A node that has served nothing yet has no hit rate; 0 % would look like a broken cache.
        answers = status.hits + status.misses
        share = ""
        if answers:
            share = f"{status.hits / answers:.0%}"
        loaders = f"{status.loaders} loaders"
        if status.loaders == 1:
            loaders = "1 loader"
        rows.append(
            (
                status.address,
                "up",
                status.pages,
                size(status.nbytes),
                f"{status.share:.0%}",
                share,
                loaders,
            )
        )
    table = Table(
        form=("{:<24}", " {:<5}", " {:>10}", " {:>10}", " {:>6}", " {:>6}", "  {}"),
        header=("node", "state", "pages", "bytes", "share", "hits", ""),
        rows=rows,
    )
    body = [status._asdict() for status in statuses]
    return body, [table], int(any(status.error for status in statuses))


VERB = Verb(
    text="keep pages of remote shards on the nodes of a cluster",
    verbs={"serve": serve, "fill": fill, "ls": ls},
)
