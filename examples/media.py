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
    """Result of `fetch`. problems: one line per package or file that is missing."""

    n_files: int
    n_new: int
    nbytes: int
    problems: tuple[str, ...] = field(default=())


def listed(path: Path | None = None) -> list[dict[str, Any]]:
    """Return the packages of media.toml."""
    text = (path or Path(__file__).with_name("media.toml")).read_text(encoding="utf-8")
    packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
    return packages


def fetch(
    into: Path,
    cache: Path,
    packages: list[dict[str, Any]] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Fetched:
    """Write every listed file to `into/<path>`; a file that is there already costs one read."""
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
    origins: dict[str, dict[str, str]] = {}
    for package in packages:
        for file in package["file"]:
            if (into / file["path"]).exists():
                origins[file["path"]] = _origin(package, file)
    text = json.dumps(origins, indent=1, ensure_ascii=False, sort_keys=True)
    _replace(into / ORIGINS, f"{text}\n".encode())
    nbytes = sum((into / path).stat().st_size for path in origins)
    return Fetched(n_files=len(origins), n_new=n_new, nbytes=nbytes, problems=tuple(problems))


def _missing(package: dict[str, Any], into: Path) -> bool:
    return any(_sha256(into / file["path"]) != file["sha256"] for file in package["file"])


def _sha256(path: Path) -> str | None:
    """Return the SHA-256 (hex) of a file; None if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _archive(package: dict[str, Any], cache: Path) -> Path:
    """Return the path of a package's archive in the cache; pip downloads it if it is not there."""
    folder = cache / f"{package['name']}-{package['version']}"
    if not folder.is_dir():
        # A folder of this process, which is renamed when it is whole: other processes may fill the cache too.
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
    """Write the members that `into` lacks; return their number, and the errors of members with other bytes."""
    errors: list[str] = []
    missing = [file for file in package["file"] if _sha256(into / file["path"]) != file["sha256"]]
    members = _members(archive, [file["member"] for file in missing])
    for file, data in zip(missing, members, strict=True):
        digest = hashlib.sha256(data).hexdigest()
        if digest != file["sha256"]:
            errors.append(
                f"{file['member']} has sha256 {digest}, expected {file['sha256']}: it is not written"
            )
            continue
        _replace(into / file["path"], data)
    return len(missing) - len(errors), errors


def _members(archive: Path, names: list[str]) -> list[bytes]:
    if archive.name.endswith(".tar.gz"):
        contents: dict[str, bytes] = {}
        with tarfile.open(archive, "r|gz") as stream:  # one pass; seeking back in gzip reads it all again
            for member in stream:
                if member.name not in names:
                    continue
                content = stream.extractfile(member)
                if content is not None:  # None: not a file
                    contents[member.name] = content.read()
        return [contents[name] for name in names]
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
    """Return 0 if every listed file is there, else 1."""
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
