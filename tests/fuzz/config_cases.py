"""Random settings: valid, extreme and wrong-typed, as a mapping, as YAML and as flags."""

import datetime
import json
import math
import random

import yaml

from rrcluster.settings import FIELDS

NUMBERS = [0, 1, 2, 3, 10, 60, 1000, -1, 10**6, 10**9, 10**18, 2**63, 2**64, 10**30, 10**400, -(10**400)]
FLOATS = [0.5, 0.1, 1e-4, 1e-3, 1e-300, 5e-324, 1e308, -0.0, -0.5, 2.5, math.inf, -math.inf, math.nan]
WORDS = [
    *("joint", "identifier", "none", "ifca", "fedavg", "pld", "rdp", "paper", "kary", "gaussian", "poisson"),
    *("fixed-size", "add-remove", "replace-one", "auto", "exact", "coin", "warm", "kmeans++", "cpu", "cuda", "cuda:7"),
    *("meta", "synthetic", "fashion-mini", "fashion-mnist", "linear", "cnn", "batched", "reference", "true"),
]
TEXTS = ["", "abc", "1e-4", "nan", "-inf", "0x10", "../../x", "/", "a/b", "~", "~nobody/x", "\0", "é", "a" * 5000]
ODD = [None, True, False, [], [1], [1, 2, 3], [1, 1], ["a"], [None], [[1]], {}, {"a": 1}, datetime.date(2020, 1, 1)]
UNKNOWN = ["epsilonn", "rebalance", "", "__class__", "data.data", "résumé", 7, None, True]
LIKELY = {
    "noise_multiplier": [0.5, 1.0, 5.0],
    "num_clients": [60, 1000],
    "num_rounds": [1, 10],
    "sample_rate": [0.5, 1.0],
    "delta": [1e-3, 1e-5],
    "mechanism": ["joint", "identifier", "none"],
    "min_cluster_size": [0, 2],
    "dropout": [0.0, 0.5, 1.0],
}
STRAY = [
    "-k",
    "-B",
    "-q",
    "--",
    "-",
    "x",
    "--resume",
    "--seeds",
    "--no-json",
    "--epsilon=",
    "--help",
    "-k4",
    "=",
    "--=1",
]


def settings(rng: random.Random) -> dict:
    """A mapping of up to six settings; half of the values likely ones, so that many cases get through to the plan."""
    case = {}
    for _ in range(rng.randrange(7)):
        if rng.random() < 0.5:
            name = rng.choice(list(LIKELY))
            case[name] = rng.choice(LIKELY[name])
        else:
            case[rng.choice(list(FIELDS))] = rng.choice(rng.choice([NUMBERS, FLOATS, WORDS, TEXTS, ODD]))
    if rng.random() < 0.05:
        case[rng.choice(UNKNOWN)] = 1
    return case


def yaml_text(rng: random.Random) -> str:
    """Settings as a YAML file, one in three damaged."""
    text = yaml.safe_dump(settings(rng))
    damage = rng.randrange(15)
    if damage == 0:
        return text[: rng.randrange(len(text) + 1)]
    if damage == 1:
        place = rng.randrange(len(text) + 1)
        return text[:place] + rng.choice("{}[]:&*!%@`\"'\t\0\x85\u2028") + text[place:]
    if damage == 2:
        return rng.choice(BOMBS)
    if damage == 3:
        return json.dumps(rng.choice([None, 1, "text", [1], [{"epsilon": 1}], {"epsilon": {"a": [1]}}]))
    return text


def flags(rng: random.Random) -> list[str]:
    """Settings as command line flags, some of them misplaced."""
    words = []
    for name, value in settings(rng).items():
        words.append(f"--{str(name).replace('_', '-')}".replace("num-", "" if rng.random() < 0.9 else "num-"))
        if rng.random() < 0.95:
            words += [_word(part) for part in value] if isinstance(value, list) else [_word(value)]
    if rng.random() < 0.15:
        words.insert(rng.randrange(len(words) + 1), rng.choice(STRAY))
    return words


def _word(value: object) -> str:
    return str(value).replace("\0", "?")  # a process cannot be given NUL


_STEPS = ["ab", "bc", "cd", "de", "ef", "fg", "gh", "hi"]
_LAUGHS = "\n".join(["a: &a [1]", *(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in _STEPS)])
_MERGE = "\n".join(["a: &a {x: 1}", *(f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}" for old, new in _STEPS)])
BOMBS = [
    _LAUGHS + "\nepsilon: *i",
    _MERGE + "\n<<: *i",
    "epsilon: &a [*a]",
    "epsilon: " + "[" * 3000,
    "seed: 0x" + "f" * 5000,
    "delta: 2001-99-99",
    "epsilon: !!python/object/apply:os.system ['true']",
    "? [1, 2]\n: 3",
    "epsilon: 190:20:30:190:20:30",
    "name: !!binary '*'",
    "- 1\n- 2",
    "epsilon: .inf",
]
