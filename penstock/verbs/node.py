"""`penstock node check|suspects|drain|return|watch`: find, prove and drain bad nodes."""

import getpass
import json
import signal
import threading
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidStore, PenstockError

from ..places import check_root_or_records
from ..units import utc_us
from .verb import (
    Answer,
    Table,
    Verb,
    argument,
    cluster_argument,
    flag,
    list_option,
    parse_cluster,
    show,
    verb,
)

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..nodes.control import NodeControl
    from ..nodes.watch import NodeReview

_CLUSTER = "TOML file of the cluster"
_REQUIRED_CLUSTER = argument("--cluster FILE", _CLUSTER, required=True)
_NODE = (argument("node", "name of the node"), _REQUIRED_CLUSTER)


def _open_cluster(arguments: Namespace) -> "tuple[Cluster, NodeControl]":
    from ..compute.cluster import read_cluster
    from ..nodes.control import node_control

    cluster = read_cluster(arguments.cluster)
    return cluster, node_control(cluster)


def _root(arguments: Namespace) -> "loader.Root | None":
    try:
        return loader.Root(arguments.root)
    except InvalidStore:
        # A node without a default root can still run the cluster's own checks. A root that was named must work.
        if arguments.root is not None:
            raise
        return None


@verb("run the checks of this node", cluster_argument(f"{_CLUSTER}, whose [train.checks] run too"))
def check(arguments: Namespace) -> Answer:
    """Run the checks of this node; the exit status is the worst one's, by Nagios."""
    from ..compute.cluster import Cluster
    from ..nodes.node_check import CheckStatus, put_failures, run_checks, this_node, worst
    from ..nodes.proof import cluster_checks

    try:
        root = _root(arguments)
        cluster = parse_cluster(arguments) or Cluster()
    except PenstockError as error:  # an exit status of 2 would accuse the node
        return [], f"unknown: {error}", int(CheckStatus.UNKNOWN)
    results = run_checks(cluster_checks(cluster, None if root is None else root.url))
    # Stored failures are signs for `penstock node suspects`, which compares nodes.
    if root is not None:
        put_failures(root.store, this_node(), results)
    rows = [(one.check, one.status.name.lower(), one.text) for one in results]
    table = Table(
        form=("{:<16}", " {:<8}", " {}"), header=("check", "status", "text"), rows=rows, titled=False
    )
    words: list[str | Table] = (
        [table] if rows else ["no checks: pass --root, or --cluster with [train.checks]"]
    )
    return [one.to_json() for one in results], words, int(worst(results))


@verb(
    "list nodes with signs against them",
    cluster_argument(f"{_CLUSTER}: its accounting names the nodes of each start"),
)
def suspects(arguments: Namespace) -> Answer:
    """List the nodes that the record's signs speak against."""
    from ..nodes.cases import CaseBook, settlement_us
    from ..nodes.losses import loss_differences
    from ..nodes.signs import read_signs
    from ..nodes.suspects import suspects as suspects_of
    from ..train.submitting import record_launcher

    root = loader.Root(arguments.root)
    now_us = utc_us()
    check_root_or_records(root.store, "runs")
    cluster = parse_cluster(arguments)
    spans = None
    if cluster is not None:
        spans = record_launcher(root.url, cluster).spans
    signs = read_signs(root.store, now_us, spans, partial(loss_differences, root))
    named = suspects_of(signs, now_us, settlement_us(CaseBook(root.store).read()))
    rows = [(one.node, one.sign, one.text) for one in named]
    table = Table(form=("{:<20}", " {:<12}", " {}"), header=("node", "sign", "figures"), rows=rows)
    body = [{"node": one.node, "sign": one.sign, "at_us": one.at_us, "text": one.text} for one in named]
    return body, [table] if rows else "no suspects", 0


@verb("drain a node", *_NODE, argument("--reason R", "why, for the scheduler and the record", required=True))
def drain(arguments: Namespace) -> Answer:
    from ..nodes.watch import drain_by_hand

    _, control = _open_cluster(arguments)
    store = loader.Root(arguments.root).store
    case = drain_by_hand(store, control, arguments.node, arguments.reason, getpass.getuser())
    body = {"node": case.node, "case": case.number, "reason": case.reason}
    return body, f"{case.node} is drained: {case.reason}", 0


@verb("return a node that penstock drained", *_NODE)
def return_node(arguments: Namespace) -> Answer:
    from ..nodes.watch import return_by_hand

    _, control = _open_cluster(arguments)
    store = loader.Root(arguments.root).store
    number = return_by_hand(store, control, arguments.node, getpass.getuser())
    return (
        {"node": arguments.node, "case": number},
        f"{arguments.node} is in service; case q-{number} is closed",
        0,
    )


@verb(
    "prove, drain and return nodes",
    _REQUIRED_CLUSTER,
    flag("--apply", "drain and return nodes; else say what it would do"),
    flag("--once", "review once, and end"),
    list_option("--data ROOT", "other root that trainings read, for proofs"),
)
def watch(arguments: Namespace) -> Answer:
    """Prove suspects, drain them within the caps, and return nodes after clean checks."""
    from ..nodes.losses import loss_differences
    from ..nodes.proof import NodeProver
    from ..nodes.watch import NodeWatch, review_once, watch_nodes
    from ..train.submitting import record_launcher

    cluster, control = _open_cluster(arguments)
    root = loader.Root(arguments.root)
    check_root_or_records(root.store, "runs")
    prover = NodeProver(cluster, [root.url, *arguments.data])
    spans = record_launcher(root.url, cluster).spans
    losses = partial(loss_differences, root)
    watched = NodeWatch(root.store, control, prover, apply=arguments.apply, spans=spans, losses=losses)
    show_review = _show
    if arguments.json:
        show_review = _JsonChanges().show
    if arguments.once:
        review = review_once(watched, show_review)
        return review.to_json(), _text(review.lines, review.alert) or "nothing to do", 0
    # Signals end the watch between two reviews: none is cut between a drain and its record.
    ends = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.set())
    watch_nodes(watched, show_review, ends.wait)
    return {}, "", 0


def _text(lines: Sequence[str], alert: str) -> str:
    return "\n".join([*lines, *([f"ALERT: {alert}"] if alert else [])])


def _show(review: "NodeReview") -> None:
    if text := _text(review.news, review.alert):
        show(text)


class _JsonChanges:
    """Prints reviews for `--json`, each once until it changes."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, review: "NodeReview") -> None:
        text = json.dumps(review.to_json())
        # One line per change: a watch of days would otherwise fill the log with equal reviews.
        if text != self._last:
            print(text, flush=True)
        self._last = text


VERB = Verb(
    text="find and drain bad nodes",
    verbs={"check": check, "suspects": suspects, "drain": drain, "return": return_node, "watch": watch},
)
