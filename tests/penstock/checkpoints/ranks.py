"""Ranks of a training, as real processes. Reads a request per line, forks that many ranks, and answers with a line.

A request: {"world": 2, "do": "save", ...}; the answer: for each rank {"code": exit status, "said": what it gave or its
error}. Everything is imported once, here; each rank is forked before it has done anything with it.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

# Ranks are forks: they could use no GPU once this process has asked CUDA, and not the driver, how many there are.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
import torch._dynamo  # optimizers import it on first use, for a second of every rank
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from loader import NodeCache, Root
from loader.cache.peers.near_client import NearClient
from loader.cache.peers.near_files import NearFiles
from loader.dataset.shards.shard import crc32c
from loader.storage.disk.folder_files import NewFile
from loader.storage.disk.store import LocalStore
from loader.storage.requests import Traffic, count_requests
from penstock.checkpoints import Checkpoints, TrainingState
from penstock.checkpoints.near import rank_group
from penstock.checkpoints.near.host_copy import HostCopy

SIZES = {"small": (1001, 32, 1), "9M": (20_001, 192, 12), "100M": (20_001, 768, 12)}


class Transformer(nn.Module):
    """Words to words; 100.4 million parameters of float32 with (20_001, 768, 12)."""

    def __init__(self, words, width, depth):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(depth)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return x.mean()


def make_model(request):
    """(model, optimizer), the model's weights drawn from the request's seed; sharded where there are ranks."""
    torch.manual_seed(request["seed"])
    model = Transformer(*SIZES[request.get("size", "small")]).to(request["device"])
    if distributed.is_initialized():
        mesh = init_device_mesh(request["device"], (distributed.get_world_size(),))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps, seed=0):
    """So many steps over words that depend on the rank."""
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    draw = torch.Generator().manual_seed(seed * 100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        words = torch.randint(0, 1000, (2, 8), generator=draw)
        model(words.to(model.seen.device)).backward()
        optimizer.step()
        model.seen += 1


def digests(model, optimizer):
    """Name -> shape and CRC-32C of the whole tensor, or the value itself, of all that a checkpoint must bring back."""
    found = {}

    def visit(name, value):
        if isinstance(value, dict):
            for key, item in value.items():
                visit(f"{name}/{key}", item)
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            data = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            found[name] = f"{list(whole.shape)} {crc32c(data.data):08x}"
        else:
            found[name] = repr(value)

    visit("", TrainingState(model, optimizer).state_dict())
    return found


def checkpoints(request):
    root = Root(request["url"], options=request.get("options"))
    names = ("keep_last", "keep_every", "part_bytes")
    options = {name: request[name] for name in names if name in request}
    if "near" in request:
        folders = request["near"]
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        options["near"] = NodeCache(path=folders[rank % len(folders)], peers=request["peers"])
    return Checkpoints(root, "run", **options)


def kill_before_suffix(store, suffix):
    """This process ends by SIGKILL before its store's first write to a key that ends so."""

    def deadly(write):
        def write_or_die(key, data):
            if key.endswith(suffix):
                os.kill(os.getpid(), signal.SIGKILL)
            write(key, data)

        return write_or_die

    store.put, store.put_if_absent = deadly(store.put), deadly(store.put_if_absent)


def save(request, rank):
    """Trains, saves; with "after", goes on training while the save is on its way; with "apart", each rank saves a step
    that is so much higher. Digests of what was to be saved."""
    model, optimizer = make_model(request)
    train(model, optimizer, request.get("train", 2))
    saved = digests(model, optimizer)
    with checkpoints(request) as kept:
        if rank == request.get("die_rank"):
            kill_before_suffix(kept._root.store, request["die_at"])
        step = request["step"] + rank * request.get("apart", 0)
        kept.save(step, {"t": TrainingState(model, optimizer)}, wait="after" not in request)
        if "after" in request:
            train(model, optimizer, request["after"], seed=1)
            assert digests(model, optimizer) != saved
    return saved


def load(request, rank):
    """Loads into a model of other weights. Digests, the step, and the requests that it took."""
    model, optimizer = make_model(request)
    traffic = Traffic()
    with checkpoints(request) as kept, count_requests(traffic):
        found = kept.load({"t": TrainingState(model, optimizer)}, step=request.get("step", "latest"))
    return {"digests": digests(model, optimizer), "step": found and found.step, "requests": traffic.requests}


def near_state(step, rank):
    """A state that no other step has: a tensor of all ranks, one of this rank, and a value."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return {
        "all": torch.full((3000,), float(step)),
        f"rank{rank}": torch.randn(4000, generator=draw),
        "step": step,
    }


def kill_at_change(pid, at):
    """A process ends by SIGKILL before this one's change number `at` of near files, here or on another node; none does
    below 0. A call that gives the number of changes."""
    changes = 0

    def deadly(call):
        def count_or_die(*args, **options):
            nonlocal changes
            if changes == at:
                os.kill(pid, signal.SIGKILL)
            changes += 1
            return call(*args, **options)

        return count_or_die

    for owner, name in (
        (LocalStore, "put"),
        (NearFiles, "open_new"),
        (NewFile, "finish"),
        (NearFiles, "delete"),
        (NearClient, "put"),
        (NearClient, "delete"),
    ):
        setattr(owner, name, deadly(getattr(owner, name)))
    return lambda: changes


def save_near_steps(request, rank):
    """Saves near steps as the rank of a node. During the last one `die_rank` kills itself, or the process `die_pid`.
    The counts, and the changes of the last step."""
    near = NodeCache(path=request["near"][rank], limit_bytes=2**16, page_bytes=4096, peers=request["peers"])
    changes = None
    with Checkpoints(request["url"], "run", near=near, near_every=1, part_bytes=20_000) as saved:
        for step in request["steps"]:
            if step == request["steps"][-1] and rank == request["die_rank"]:
                changes = kill_at_change(request.get("die_pid") or os.getpid(), request["die_at"])
            saved.save_near(step, near_state(step, rank))
            saved.wait()
        counts = saved.near_counts()
    return {"counts": counts, "changes": changes and changes()}


def save_near_with_a_pause(request, rank):
    """Save near steps on a rank of a node until one is saved after a pause of rank 1 in which an exchange fails.

    Return the counts.
    """
    rank_group.GROUP_S = 1.0
    rank_group.LOOK_S = 0.05
    near = NodeCache(path=request["near"][rank], limit_bytes=2**16, page_bytes=4096, peers=request["peers"])
    with Checkpoints(request["url"], "run", near=near, near_every=1) as saved:
        saved.load(near_state(0, rank))
        step = 0
        has_saved = torch.zeros(1)
        while has_saved.item() < distributed.get_world_size() and step < 150:
            step += 1
            state = near_state(step, rank)
            if step == 3 and rank == 1:
                pause(NearFiles, "open_new", 2.5)
            saved.save_near(step, state)
            time.sleep(0.1)
            counts = saved.near_counts()
            has_saved[0] = float(counts.failed > 0 and counts.step > 3)
            distributed.all_reduce(has_saved)
        saved.wait()
        counts = saved.near_counts()
    return {"counts": counts}


def copy_to_host(request, rank):
    """Copy a state of sharded tensors twice, with a change in between.

    Return whether the second copy is in the first one's memory, and has the state of its time.
    """
    mesh = init_device_mesh(request["device"], (distributed.get_world_size(),))
    whole = torch.arange(4096.0).reshape(64, 64)
    state = {
        "shard": distribute_tensor(whole, mesh, [Shard(0)]),
        "all": distribute_tensor(whole, mesh, [Replicate()]),
    }
    host_copy = HostCopy()
    first = {name: value.to_local() for name, value in host_copy.take(state).items()}
    for value in state.values():
        value.mul_(2.0)
    staged = host_copy.take(state)
    expected = {name: value.to_local().cpu().clone() for name, value in state.items()}
    for value in state.values():
        value.zero_()
    second = {name: value.to_local() for name, value in staged.items()}
    return {
        "in_place": all(first[name].data_ptr() == second[name].data_ptr() for name in state),
        "devices": sorted({value.device.type for value in second.values()}),
        "equal": all(torch.equal(second[name], expected[name]) for name in state),
        "sizes": [list(value.shape) for value in staged.values()],
    }


def pause(owner, name, seconds):
    """Let the next call of a method wait."""
    call = getattr(owner, name)

    def sleep_once(*args):
        setattr(owner, name, call)
        time.sleep(seconds)
        return call(*args)

    setattr(owner, name, sleep_once)


def as_rank(request, rank, meet, answer):
    """One rank, from its birth to its end."""
    torch.set_num_threads(1)
    try:
        world, device = request["world"], torch.device(request.setdefault("device", "cpu"))
        if device.type == "cuda":
            torch.cuda.set_device(rank)
            warnings.simplefilter("default")  # torch gives advice about GPUs that no test is about
        if world > 1 or device.type == "cuda":
            backend = "nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, init_method=f"file://{meet}", rank=rank, world_size=world)
        answer.write_text(json.dumps(globals()[request["do"]](request, rank)))
        if distributed.is_initialized():
            distributed.destroy_process_group()
        code = 0
    except Exception as error:  # noqa: BLE001 - it is this rank's answer
        answer.write_text(json.dumps(f"{type(error).__name__}: {error}"))
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def main():
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            children = {}
            for rank in range(request["world"]):
                if not (child := os.fork()):
                    as_rank(request, rank, f"{folder}/meet", Path(folder, f"{rank}.json"))
                children[rank] = child
            out = []
            for rank, child in children.items():
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                said = Path(folder, f"{rank}.json")
                out.append({"code": code, "said": json.loads(said.read_text()) if said.exists() else None})
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
