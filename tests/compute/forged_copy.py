"""A job as an attacker forges it, who may write `jobs/`: it copies files of a node."""

from pathlib import Path

from loader.storage import Store
from penstock.compute.job import JobDescription, now_us
from penstock.compute.job_json import to_json
from penstock.compute.submit import write_units
from penstock.compute.work import StoredPlace, python_release, source_hash
from penstock.upkeep.copying.copy_job import COPY, CopySettings, CopyUnit
from penstock.upkeep.copying.items import Item


def forged_copy(store: Store, id_: str, source: Path, target: Path, tmp_path: Path) -> JobDescription:
    """Write a job under an id that copies each file of a folder of the node to another one."""
    settings = CopySettings(
        source=str(source),
        target=str(target),
        compared=False,
        may_exist=False,
        hash="sha256",
        at_once=1,
        requests_per_s=None,
        bytes_per_s=None,
    )
    items = [Item(path=file.name, nbytes=file.stat().st_size) for file in source.iterdir()]
    path = tmp_path / "forged-units"
    file = write_units(COPY, [CopyUnit(settings=settings, items=items)], path)
    description = JobDescription(
        work=COPY.place,
        name=COPY.name,
        version=COPY.version,
        about="verify d@1",
        code=source_hash(COPY.place),
        python=python_release(),
        units=file.sha256,
        blocks=file.blocks,
        frames=file.frames,
        stores=[StoredPlace(url=str(place), options={}) for place in (source, target)],
        at_us=now_us(),
        token="0" * 8,
    )
    folder = f"jobs/{id_}/"
    store.put_file(f"{folder}units-{file.sha256}.jsonl.zst", str(path))
    store.put(f"{folder}job.json", to_json(description))
    return description
