"""Write requirements/*.txt: every pin with the sha256 of all its files on the package index.

    make lock        (after a change of constraints.txt or of the dependencies in pyproject.toml)

`bootstrap.txt` has pip and setuptools, `dev.txt` what the extra [dev] needs, `docs.txt` the rest, for [docs];
`flower.txt` what of constraints-flower.txt is not in dev.txt, for an environment on top of the first. torch has
no line: which file is the right one depends on the machine (CPU or CUDA, sometimes a file on its disk), so `make`
installs its pinned version in a step of its own; what torch itself needs is in dev.txt.
"""

import os
import re
import sys
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name
from packaging.utils import parse_sdist_filename as parse_sdist
from packaging.utils import parse_wheel_filename as parse_wheel
from pip._internal.models.index import PyPI

ROOT = Path(__file__).parent.parent
BOOTSTRAP = ("pip", "setuptools")
OWN_STEP = "torch"
LINK = re.compile(r'href="[^"]*?([^"/#]+)#sha256=([0-9a-f]{64})"')


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def needed(extra: str, known: dict[str, str]) -> set[str]:
    """Pinned packages that an extra of pyproject.toml needs on any platform, by the metadata of what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    left = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"][extra])]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        entry = left.pop()
        name, extras = canonicalize_name(entry.name), frozenset(entry.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == project["name"]:
            left += [Requirement(line) for other in extras for line in project["optional-dependencies"][other]]
            continue
        if name not in known:
            continue
        for inner in map(Requirement, installed(name)):
            wanted = set(re.findall(r"extra == [\"']([^\"']+)[\"']", str(inner.marker or "")))
            if not wanted or wanted & extras:
                left.append(inner)
    return {name for name, _ in seen if name in known}


def installed(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # for another platform, or only for [docs]
        return []


def index() -> str:
    """The package index that pip asks: the one configured in the environment, or its default."""
    return os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")


def digests(name: str, version: str) -> list[str]:
    """Of every wheel and source archive of one version."""
    with urllib.request.urlopen(f"{index()}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    return sorted({digest for file, digest in LINK.findall(page) if str(version_of(file)) == version})


def version_of(file: str) -> object:
    try:
        return parse_wheel(file)[1] if file.endswith(".whl") else parse_sdist(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def block(name: str, version: str) -> str:
    found = digests(name, version)
    if not found:
        raise SystemExit(f"{name}=={version} is not on {index()}; change its pin.")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n"


def main() -> None:
    known = pins()
    dev = needed("dev", known) - {OWN_STEP, *BOOTSTRAP}
    docs = set(known) - dev - {OWN_STEP, *BOOTSTRAP}
    for part, names in (("bootstrap", set(BOOTSTRAP)), ("dev", dev), ("docs", docs)):
        write(part, {name: known[name] for name in names}, "constraints.txt")
    below = {name: known[name] for name in (*BOOTSTRAP, *dev, OWN_STEP)}
    on_top = set(pins("constraints-flower.txt").items()) - set(below.items())
    write("flower", dict(on_top), "constraints-flower.txt")


def write(part: str, versions: dict[str, str], source: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        blocks = pool.map(lambda name: block(name, versions[name]), sorted(versions))
        text = f"# Written by `make lock` from {source}.\n" + "".join(blocks)
    (ROOT / "requirements" / f"{part}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"requirements/{part}.txt: {len(versions)} packages\n")


if __name__ == "__main__":
    main()
