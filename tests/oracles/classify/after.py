"""Train a classifier of photos in folders, as a lab has it: torchvision, samplers and torch's DataLoader.

    torchrun --nproc-per-node 2 after.py --data photos --output run

`photos` has the folders train/<class> and val/<class>.
"""

import argparse
import itertools
import os
import time
import zlib

import torch
from torch import distributed, nn
from torchvision import datasets, models
from torchvision.transforms import v2

import loader

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=12, help="images per step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--crop", type=int, default=32)
    parser.add_argument("--resume", default="")
    return parser.parse_args()


def join():
    """Return (rank, number of processes) as torchrun sets them."""
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        distributed.init_process_group("gloo")
    return rank, world_size


def train_preset(crop):
    return v2.Compose(
        [
            v2.RandomResizedCrop(crop, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.RandomErasing(p=0.2),
        ]
    )


def eval_preset(crop):
    return v2.Compose(
        [
            v2.Resize(crop + 8, antialias=True),
            v2.CenterCrop(crop),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def load_data(args):
    dataset = datasets.ImageFolder(os.path.join(args.data, "train"), train_preset(args.crop))
    dataset_test = datasets.ImageFolder(os.path.join(args.data, "val"), eval_preset(args.crop))
    return dataset, dataset_test


def log_images(step, images):
    """Print a checksum of each image of this process."""
    checksums = [zlib.crc32(image.numpy().tobytes()) for image in images]
    print(f"images {step} {checksums}\n", end="", flush=True)


def train_one_epoch(model, criterion, optimizer, batches, epoch):
    model.train()
    started = time.time()
    for batch in batches:
        image, target = batch["0"], batch["1"]
        output = model(image)
        loss = criterion(output, target) * batch.weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log_images(batch.step, image)
        print(f"took {batch.step} {batch.digest}\n", end="", flush=True)
    print(f"epoch {epoch}: loss {loss.item():.4f}, {time.time() - started:.1f} s\n", end="", flush=True)


def evaluate(model, batches, world_size):
    model.eval()
    right = torch.zeros(2, dtype=torch.int64)
    with torch.inference_mode():
        for batch in batches:
            image, target = batch["0"][batch.mask], batch["1"][batch.mask]
            output = model(image)
            right[0] += (output.argmax(1) == target).sum()
            right[1] += len(target)
    if world_size > 1:
        distributed.all_reduce(right)
    print(f"accuracy {int(right[0])} of {int(right[1])}\n", end="", flush=True)


def save(args, rank, checkpoint):
    if rank == 0:
        path = os.path.join(args.output, "checkpoint.pth")
        torch.save(checkpoint, f"{path}.new")
        os.replace(f"{path}.new", path)


def main(args):
    rank, world_size = join()
    os.makedirs(args.output, exist_ok=True)
    torch.manual_seed(0)
    dataset, dataset_test = load_data(args)
    plan = loader.plan({"train": dataset}, seed=0, global_batch=args.batch_size)
    plan_test = loader.plan({"val": dataset_test}, seed=0, global_batch=args.batch_size, boundary="mask")
    batches = loader.Loader(plan, rank, world_size, workers=args.workers)
    steps = len(dataset) // args.batch_size
    model = models.get_model(args.model, num_classes=len(dataset.classes))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    model_without_ddp = model
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model_without_ddp.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        batches.load_state_dict(checkpoint["batches"])
    for epoch in range(batches.step // steps, args.epochs):
        rest = itertools.islice(batches, (epoch + 1) * steps - batches.step)
        train_one_epoch(model, criterion, optimizer, rest, epoch)
        scheduler.step()
        with loader.Loader(plan_test, rank, world_size, epochs=1, workers=args.workers) as batches_test:
            evaluate(model, batches_test, world_size)
        checkpoint = {
            "model": model_without_ddp.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "batches": batches.state_dict(),
        }
        save(args, rank, checkpoint)
    if world_size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(parse_arguments())
    # torch 2.13 may wait for ever here: its thread of Gloo needs the interpreter's lock, which drops the group.
    os._exit(0)
