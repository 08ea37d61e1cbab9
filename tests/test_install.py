"""The locked install: every pin has hashes, but torch, and `make` asks for them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file="constraints.txt"):
    lines = (ROOT / file).read_text().split()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines)}


def locked(*parts):
    """Version and number of hashes by package."""
    text = "".join((ROOT / "requirements" / f"{part}.txt").read_text() for part in parts)
    blocks = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, flags=re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^\w", text, flags=re.MULTILINE)), "a line without a hash"
    return {normal(name): (version, hashes.count("--hash")) for name, version, hashes in blocks}


def test_every_pin_is_locked_but_torch():
    """After a change of constraints.txt: `make lock`."""
    assert {name: version for name, (version, _) in locked("bootstrap", "dev", "docs").items()} == {
        name: version for name, version in pins().items() if name != "torch"
    }


def test_what_flower_needs_on_top_of_the_first_environment_is_locked():
    flower, below = (
        {name: version for name, (version, _) in locked(*parts).items()}
        for parts in (("flower",), ("bootstrap", "dev"))
    )
    below["torch"] = pins()["torch"]
    assert flower == dict(set(pins("constraints-flower.txt").items()) - set(below.items()))
    assert flower["flwr"].startswith("1.41.")


def test_pip_and_setuptools_are_above_their_known_holes():
    """CVE-2025-47273 is fixed in setuptools 78.1.1, CVE-2025-8869 in pip 25.3."""
    version = {name: tuple(int(part) for part in pins()[name].split(".")) for name in ("pip", "setuptools")}
    assert version["pip"] >= (25, 3)
    assert version["setuptools"] >= (78, 1, 1)
    assert {"pip", "setuptools"} <= set(
        re.findall(r"^(\w+)==", (ROOT / "requirements/bootstrap.txt").read_text(), re.M)
    )


def test_make_asks_for_hashes():
    steps = re.findall(r"^\t\$\(PIP\) (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert len(steps) == 5
    unchecked = [step for step in steps if "--require-hashes" not in step]
    assert ["torch==" in unchecked[0], "--editable ." in unchecked[1]] == [True, True]
    assert len(unchecked) == 2
    on_top = re.findall(
        r"^\t\$\(FLOWER\) -m \$\(PIP_INSTALL\) (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE
    )
    assert [step.startswith("--require-hashes --no-deps") for step in on_top] == [True, True]


def test_downloads_start_with_https():
    from rrcluster.data.catalogue import SOURCES

    for source in SOURCES.values():
        secure = [url.startswith("https://") for url in source.urls]
        assert secure == sorted(secure, reverse=True), source.name
        assert all(file.sha256 and file.download_sha256 for file in source.files if source.urls)
