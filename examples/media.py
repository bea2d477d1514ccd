"""Fetch the media listed in media.toml through pip, check every file, and say where each came from.

    python -m examples.media --into demo/raw --cache media-cache

Only the named members of the packages are unpacked; nothing is installed. An sdist's metadata is prepared by
pip as always, in pip's own throw-away environment. A package that cannot be had is reported, not fatal.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ORIGINS = "_origins.json"
"""Written beside the files: path -> origin, licence, author ...; landing reads it, a person may write one."""

_WHEEL_OF = ["--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--platform", "any"]
_WHEEL_OF += ["--python-version", "3.11", "--implementation", "cp"]
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one call of `fetch` did. problems: one line per package or file that could not be had."""

    n_files: int
    n_new: int
    nbytes: int
    problems: tuple[str, ...] = field(default=())


def listed(path: Path | None = None) -> list[dict[str, Any]]:
    """The packages of media.toml."""
    text = (path or Path(__file__).with_name("media.toml")).read_text(encoding="utf-8")
    packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
    return packages


def fetch(
    into: Path,
    cache: Path,
    packages: list[dict[str, Any]] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Fetched:
    """Bring every listed file to `into/<path>`; a file that is there already costs one read."""
    packages = listed() if packages is None else packages
    missing = [package for package in packages if _missing(package, into)]
    problems: list[str] = []
    n_new = 0
    with ThreadPoolExecutor(max_workers=3) as pool:
        archives = {package["name"]: pool.submit(_archive, package, cache) for package in missing}
        for package in missing:
            progress(f"{package['name']} {package['version']}")
            try:
                written, refused = _unpack(package, archives[package["name"]].result(), into)
                n_new += written
                problems += refused
            except (
                OSError,
                LookupError,
                subprocess.TimeoutExpired,
                tarfile.TarError,
                zipfile.BadZipFile,
            ) as error:
                problems.append(f"{package['name']} {package['version']}: {error}")
    there = [
        (package, file) for package in packages for file in package["file"] if (into / file["path"]).exists()
    ]
    origins = {file["path"]: _origin(package, file) for package, file in there}
    _replace(
        into / ORIGINS, (json.dumps(origins, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()
    )
    nbytes = sum((into / path).stat().st_size for path in origins)
    return Fetched(n_files=len(origins), n_new=n_new, nbytes=nbytes, problems=tuple(problems))


def _missing(package: dict[str, Any], into: Path) -> bool:
    return any(_sha256(into / file["path"]) != file["sha256"] for file in package["file"])


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _archive(package: dict[str, Any], cache: Path) -> Path:
    """The package's archive in the cache, downloaded by pip when it is not there yet."""
    folder = cache / f"{package['name']}-{package['version']}"
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        requirement = f"{package['name']}=={package['version']}"
        chosen = _WHEEL_OF if package["format"] == "wheel" else ["--no-binary", package["name"]]
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            *quiet,
            *chosen,
            "--dest",
            str(partial),
        ]
        done = subprocess.run(
            [*command, requirement], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise OSError(f"pip download {requirement} failed: {' '.join(last) or 'no message'}")
        if not folder.is_dir():
            partial.rename(folder)
    archives = [path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz", ".zip"))]
    if len(archives) != 1:
        raise LookupError(
            f"{folder} holds {len(archives)} archives, expected one; delete that folder and try again"
        )
    return archives[0]


def _unpack(package: dict[str, Any], archive: Path, into: Path) -> tuple[int, list[str]]:
    """Write the members that `into` lacks, each checked before: how many, and what was refused."""
    refused: list[str] = []
    wanted = [file for file in package["file"] if _sha256(into / file["path"]) != file["sha256"]]
    for file, data in zip(wanted, _members(archive, [file["member"] for file in wanted]), strict=True):
        found = hashlib.sha256(data).hexdigest()
        if found != file["sha256"]:
            refused.append(
                f"{file['member']} has sha256 {found}, expected {file['sha256']}: it is not written"
            )
            continue
        _replace(into / file["path"], data)
    return len(wanted) - len(refused), refused


def _members(archive: Path, names: list[str]) -> list[bytes]:
    if archive.name.endswith(".tar.gz"):
        found: dict[str, bytes] = {}
        with tarfile.open(archive, "r|gz") as stream:  # one pass; seeking back in gzip reads it all again
            for member in stream:
                content = stream.extractfile(member) if member.name in names else None
                if content is not None:
                    found[member.name] = content.read()
        return [found[name] for name in names]
    with zipfile.ZipFile(archive) as bundle:
        return [bundle.read(name) for name in names]


def _origin(package: dict[str, Any], file: dict[str, Any]) -> dict[str, str]:
    names = ("sha256", "licence", "author", "title", "text")
    facts: dict[str, str] = {name: file[name] for name in names if name in file}
    return {
        **facts,
        "origin": f"{package['name']} {package['version']} ({package['format']}) {file['member']}",
    }


def _replace(path: Path, data: bytes) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    partial.write_bytes(data)
    os.replace(partial, path)


def main() -> int:
    """0 when every listed file is there, 1 when something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path("demo/raw"))
    parser.add_argument("--cache", type=Path, default=Path("media-cache"))
    options = parser.parse_args()
    fetched = fetch(options.into, options.cache, progress=lambda line: print(f"  {line}", flush=True))
    for problem in fetched.problems:
        print(f"not fetched: {problem}", file=sys.stderr)
    print(
        f"{fetched.n_files} files, {fetched.nbytes / 2**20:.1f} MiB, {fetched.n_new} new, in {options.into}"
    )
    return 1 if fetched.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
