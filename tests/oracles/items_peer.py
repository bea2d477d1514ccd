"""Datasets of torchvision, Hugging Face and Grain as sources, and Albumentations: python items_peer.py CASE FOLDER."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
os.environ["HF_HOME"] = str(FOLDER / "hf")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

from items_walk import loader, make_plan, print_walk, read_steps, value_text  # noqa: E402
from PIL import Image  # noqa: E402

N = 40


def photo(n):
    """Return a photo of its own; sizes differ."""
    pixels = np.random.default_rng(n).integers(0, 255, (20 + n % 3, 24, 3), np.uint8)
    return Image.fromarray(pixels)


def photo_folder():
    """Write a folder of photos for each of four classes, and return the path."""
    folder = FOLDER / "photos"
    for n in range(N):
        place = folder / f"class-{n % 4}"
        place.mkdir(parents=True, exist_ok=True)
        photo(n).save(place / f"{n:03d}.png")
    return folder


def augmentation():
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(12, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.4),
            v2.PILToTensor(),
        ]
    )


def image_folder():
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(photo_folder(), augmentation())
    names = [str(Path(path).relative_to(FOLDER)) for path, _ in dataset.samples]
    print_walk(loader.items(dataset, fields=("image", "label"), keys=names))


def fake_data():
    """FakeData seeds torch's generator itself for each item, and puts it back."""
    from torchvision.datasets import FakeData
    from torchvision.transforms import v2

    print_walk(FakeData(N, (3, 8, 8), 10, v2.PILToTensor()))


def voc_folder():
    """Write a detection dataset of Pascal VOC: photo n has 1 + n % 3 boxes."""
    folder = FOLDER / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    names = [f"{n:03d}" for n in range(N)]
    (folder / "ImageSets/Main/train.txt").write_text("\n".join(names))
    for n, name in enumerate(names):
        image = photo(n)
        image.save(folder / "JPEGImages" / f"{name}.jpg")
        boxes = [(1 + k, 2, 9 + n % 7, 8 + 2 * k) for k in range(1 + n % 3)]
        objects = "".join(
            f"<object><name>dog</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{right}</xmax>"
            f"<ymax>{bottom}</ymax></bndbox></object>"
            for x, y, right, bottom in boxes
        )
        (folder / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><filename>{name}.jpg</filename><size><width>{image.width}</width>"
            f"<height>{image.height}</height></size>{objects}</annotation>"
        )


def detection():
    from torchvision.datasets import VOCDetection, wrap_dataset_for_transforms_v2
    from torchvision.transforms import v2

    voc_folder()
    augment = (v2.RandomHorizontalFlip(), v2.ColorJitter(brightness=0.4))
    transforms = v2.Compose([*augment, v2.Resize((16, 16)), v2.ToImage()])
    dataset = VOCDetection(FOLDER, image_set="train", transforms=transforms)
    print_walk(wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels")))


def mix_items(items):
    from torch.utils.data import default_collate
    from torchvision.transforms import v2

    images, labels = default_collate(items)
    return v2.MixUp(num_classes=4)(images.float(), labels)


def mixup():
    """Print what collate= returns on one rank, made here and in a worker process."""
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(photo_folder(), augmentation())
    plan = make_plan(loader.items(dataset, collate=mix_items))
    settings = []
    for workers in (0, 1):
        with loader.Loader(plan, 0, 1, steps=3, workers=workers) as batches:
            settings.append([value_text(batch.collated) for batch in batches])
    print(json.dumps({"settings": settings}))


def hf_rows():
    for n in range(N):
        yield {
            "id": f"row-{n:02d}",
            "image": photo(n),
            "label": n % 4,
            "caption": None if n % 5 == 0 else f"caption {n}",
            "boxes": [[n, n + 1]] * (n % 3),
            "size": {"height": n, "width": 24},
        }


def hf_dataset():
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "image": datasets.Image(),
            "label": datasets.ClassLabel(4),
            "caption": datasets.Value("string"),
            "boxes": datasets.List(datasets.List(datasets.Value("int32"))),
            "size": {"height": datasets.Value("int32"), "width": datasets.Value("int32")},
        }
    )
    return datasets.Dataset.from_generator(hf_rows, features=features)


def hf_plain():
    print_walk(hf_dataset())


def augment_rows(rows):
    augment = augmentation()
    rows["image"] = [augment(image) for image in rows["image"]]
    return rows


def hf_transform():
    """A shuffled selection, whose rows are found by `_indices`."""
    selected = hf_dataset().shuffle(seed=3).select(range(5, 35))
    assert selected._indices is not None
    dataset = selected.with_transform(augment_rows)
    print_walk(loader.items(dataset, keys=selected["id"]))


ROWS_OF_CALLS = []


def note_rows(rows):
    """Note how many rows one call gets."""
    ROWS_OF_CALLS.append(len(rows["label"]))
    return {"label": rows["label"]}


def hf_calls():
    """Print the rows that datasets reads by each call: two batches, and the first item a second time."""
    read_steps(make_plan(hf_dataset().with_transform(note_rows)), n=2)
    print(json.dumps({"rows": ROWS_OF_CALLS}))


def hf_parquet():
    import datasets

    path = str(FOLDER / "rows.parquet")
    hf_dataset().to_parquet(path)
    print_walk(datasets.load_dataset("parquet", data_files=path, split="train").with_format("torch"))


def hf_folder():
    import datasets

    datasets.disable_progress_bars()
    dataset = datasets.load_dataset("imagefolder", data_dir=str(photo_folder()), split="train")
    dataset.set_transform(augment_rows)
    print_walk(dataset)


def array_record():
    """Write a record for each photo, and return the path."""
    from array_record.python.array_record_module import ArrayRecordWriter

    path = str(FOLDER / "photos.array_record")
    writer = ArrayRecordWriter(path, "group_size:1")
    for n in range(N):
        writer.write(np.asarray(photo(n)).tobytes())
    writer.close()
    return path


def grain_record():
    import grain

    print_walk(grain.sources.ArrayRecordDataSource(array_record()))


def pixels(record):
    return {"image": np.frombuffer(record, np.uint8).reshape(-1, 24, 3)[:20]}


def noisy(element, rng):
    return {"image": element["image"] + rng.random()}


def grain_map():
    """Grain draws from the seed and the item's number: nothing of ours is needed."""
    import grain

    source = grain.sources.ArrayRecordDataSource(array_record())
    dataset = grain.MapDataset.source(source).seed(5).map(pixels)[:30].random_map(noisy)
    print_walk(dataset)


class Albumented(torch.utils.data.Dataset):
    """Augments by Albumentations, whose pipelines draw from generators of their own."""

    def __init__(self):
        import albumentations

        crop = albumentations.RandomResizedCrop((12, 12))
        brightness = albumentations.RandomBrightnessContrast()
        self.augment = albumentations.Compose([crop, brightness])

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"image": self.augment(image=np.asarray(photo(i)))["image"], "label": i}


def seed_augment(dataset, rng):
    dataset.augment.set_random_seed(int(rng.integers(2**32)))


def albumentations_itself():
    """Print the error of the first batch."""
    try:
        read_steps(make_plan(Albumented()))
    except loader.errors.UnseededItems as error:
        print(json.dumps({"error": str(error)}))


def albumentations_seeded():
    print_walk(loader.items(Albumented(), seeded=seed_augment))


class Plain(torch.utils.data.Dataset):
    """Photos as they are."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"image": np.asarray(photo(i)), "label": i}


class Augment:
    """A transform of the loader by Albumentations."""

    def __init__(self):
        self.augment = Albumented().augment

    def __call__(self, sample, rng):
        self.augment.set_random_seed(int(rng.integers(2**32)))
        return {**sample, "image": self.augment(image=sample["image"])["image"]}


def albumentations_transform():
    print_walk(Plain(), transform=Augment())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
