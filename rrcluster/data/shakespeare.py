"""Shakespeare's plays by speaking role, for predicting the next character.

A role is one speaker in one play, as in LEAF. Its text is its lines in order, each with a newline; the first 80% of the
characters are for training, the rest for testing. A sample is a window of 80 characters within a part, and its target
the character that follows. Characters are numbered by their place in the vocabulary.
"""

import hashlib
import os
import string
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.federated import IDS, FederatedData, TestSet
from rrcluster.data.sources import expect, locate, read_bytes, reporting, ways_out
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng

# The 80 characters of LEAF's vocabulary, in ASCII order.
VOCABULARY = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
WINDOW = 80  # input characters
LEAST_CHARACTERS = 1000  # of a role
MOST_TRAIN, MOST_TEST = 2000, 500  # windows of a role
TRAIN_PERCENT = 80  # of the characters of a role

Characters = NDArray[np.uint8]  # (length,) places in the vocabulary

_COLUMNS = ("play", "speaker", "speech", "line")


@dataclass(frozen=True)
class Role:
    """One speaker in one play and all that is spoken."""

    play: str
    speaker: str
    text: Characters


def load_shakespeare(folder: str | os.PathLike[str] | None = None) -> tuple[Role, ...]:
    """Every role of the 37 plays, in the order of first appearance: 1,382 of them.

    Guarantees: the file has the recorded sha256, four columns in every row, and no character outside the vocabulary;
    else a `DataError` that names the file, and the row, but not what it says.
    """
    (path,) = locate("shakespeare", folder).values()
    (file,) = SOURCES["shakespeare"].files
    way_out = ways_out("shakespeare")
    content = read_bytes(path, most=file.bytes, kind="table of plays", way_out=way_out)
    with reporting(Path(path), kind="table of plays", way_out=way_out):
        roles = parse_plays(content)
        digest = hashlib.sha256(content).hexdigest()
        expect(digest == file.sha256, f"content with sha256 {file.sha256[:12]}...", f"{digest[:12]}...")
    return roles


@lru_cache(maxsize=1)  # a table of many runs reads the same plays again and again
def parse_plays(content: bytes) -> tuple[Role, ...]:
    """The roles in a table (tab separated: play, speaker, speech, line; one row per line spoken); texts are read-only.

    The last table's roles are remembered.
    """
    rows = content.removesuffix(b"\n").split(b"\n")
    expect(rows[0] == "\t".join(_COLUMNS).encode(), f"the columns {', '.join(_COLUMNS)}", "another first row")
    codes = _codes()
    texts: dict[tuple[str, str], list[Characters]] = {}
    for number, row in enumerate(rows[1:], start=2):
        cells = row.split(b"\t")
        expect(len(cells) == len(_COLUMNS) and row.isascii(), f"4 columns of ASCII in row {number}", "another row")
        line = codes[np.frombuffer(cells[3] + b"\n", dtype=np.uint8)]
        expect(bool((line < len(VOCABULARY)).all()), f"characters of the vocabulary in row {number}", "others")
        texts.setdefault((cells[0].decode(), cells[1].decode()), []).append(line)
    roles = tuple(Role(*who, np.concatenate(lines)) for who, lines in texts.items())
    for role in roles:
        role.text.flags.writeable = False
    return roles


def _codes() -> Characters:
    """(256,) the place of every ASCII character in the vocabulary, 255 for those outside."""
    codes = np.full(256, 255, dtype=np.uint8)
    codes[np.frombuffer(VOCABULARY.encode(), dtype=np.uint8)] = np.arange(len(VOCABULARY))
    return codes


def by_role(
    name: str,
    roles: tuple[Role, ...],
    *,
    num_clients: int,
    rng: Rng,
    least_characters: int = LEAST_CHARACTERS,
    most_windows: tuple[int, int] = (MOST_TRAIN, MOST_TEST),
) -> FederatedData:
    """The population of `num_clients` roles drawn at random among those with `least_characters`.

    Each client has up to `most_windows` (training, test) windows: all there are, else that many at equal distances.
    Every role has its own test set; there are no true groups. `ConfigError` when there are fewer such roles, or when
    `least_characters` is too few for a window in both parts.
    """
    checks.count(num_clients=num_clients)
    least = checks.count(least_characters=least_characters)
    if min(_cut(least), least - _cut(least)) <= WINDOW:
        needed = 100 // (100 - TRAIN_PERCENT) * WINDOW + 1
        raise ConfigError(f"least_characters = {least} leaves a part without a window; ask for at least {needed}.")
    able = [role for role in roles if len(role.text) >= least]
    if num_clients > len(able):
        raise ConfigError(
            f"num_clients = {num_clients} is more than the {len(able)} roles with at least {least} characters; "
            f"lower num_clients (the paper has 300)."
        )
    chosen = [able[place].text for place in rng.choice(len(able), size=num_clients, replace=False)]
    train = tuple(Windows(text[: _cut(len(text))], most_windows[0]) for text in chosen)
    test = tuple(Windows(text[_cut(len(text)) :], most_windows[1]) for text in chosen)
    return FederatedData(
        name=name,
        num_classes=len(VOCABULARY),
        input_shape=(WINDOW,),
        sizes=np.array([part.count for part in train], dtype=np.int64),
        groups=np.zeros(num_clients, dtype=np.int64),
        num_groups=0,
        store=RoleStore(train),
        test_sets=tuple(TestSet(part.targets(), part.inputs, keep=False) for part in test),
        test_of=np.arange(num_clients),
        input_dtype=IDS,
    )


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a text, at most `most` of them."""

    text: Characters
    most: int

    @property
    def count(self) -> int:
        """The number of windows."""
        return min(self.most, len(self.text) - WINDOW)

    def starts(self) -> NDArray[np.int64]:
        """(count,) where each begins: everywhere, or at equal distances."""
        return np.arange(self.count, dtype=np.int64) * (len(self.text) - WINDOW) // self.count

    def inputs(self) -> NDArray[np.int64]:
        """(count, 80) the characters of every window."""
        return sliding_window_view(self.text, WINDOW)[self.starts()].astype(np.int64)

    def targets(self) -> NDArray[np.int64]:
        """(count,) the character after every window."""
        return self.text[self.starts() + WINDOW].astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class RoleStore:
    """The training text of every role, a byte per character; windows are cut when asked for."""

    parts: tuple[Windows, ...]

    def client(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The training windows of one role and their next characters."""
        return self.parts[client].inputs(), self.parts[client].targets()


def _cut(length: int) -> int:
    """The position at which a text of this length is divided."""
    return length * TRAIN_PERCENT // 100
