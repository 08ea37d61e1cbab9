"""Ways in which a file goes bad: bit flips, truncation, random bytes, wrong JSON types, lying sizes."""

import json
import random
import struct

WRONG = [None, True, -1, 0, 1.5, 10**30, 1e300, float("nan"), float("inf"), "text", "", [], [1, "a"], {}, {"a": {}}]
HUGE = [2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64, -1, 0, 10**30]


def flip(content: bytes, rng: random.Random) -> bytes:
    """One to eight flipped bits."""
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 8])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def truncate(content: bytes, rng: random.Random) -> bytes:
    """The beginning only, sometimes nothing."""
    return content[: rng.choice([0, 1, 7, 8, 9, rng.randrange(len(content)), len(content) - 1])]


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """Random bytes over a part, in between, or instead of everything."""
    noise = rng.randbytes(rng.choice([1, 4, 64]))
    place = rng.randrange(len(content))
    return rng.choice([noise, content[:place] + noise + content[place:], content + noise, content[:place] + noise])


def retype(content: bytes, rng: random.Random) -> bytes:
    """One value of a JSON (or JSON-lines) file replaced by one of another kind; also nested deeply, or no object."""
    lines = content.decode().splitlines() if content.count(b"\n{") else [content.decode()]
    place = rng.randrange(len(lines))
    try:
        value = json.loads(lines[place])
    except ValueError:
        return flip(content, rng)
    odd = rng.choice(["value", "value", "value", "value", "missing", "deep", "bare"])
    spot = value
    while odd in ("value", "missing"):
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(spot[key], (dict, list)) and spot[key] and rng.random() < 0.5:
            spot = spot[key]
            continue
        if odd == "missing":
            del spot[key]
        else:
            spot[key] = rng.choice(WRONG)
        break
    lines[place] = {"deep": "[" * 100_000, "bare": json.dumps(rng.choice(WRONG))}.get(odd, json.dumps(value))
    return ("\n".join(lines) + "\n").encode()


def lie(content: bytes, rng: random.Random) -> bytes:
    """A safetensors header that declares other sizes, offsets, types or metadata than the file holds."""
    length = struct.unpack("<Q", content[:8])[0]
    if rng.random() < 0.2:
        return struct.pack("<Q", rng.choice(HUGE) % 2**64) + content[8:]
    header = json.loads(content[8 : 8 + length])
    name = rng.choice(list(header))
    entry = header[name]
    if name == "__metadata__":
        key = rng.choice(list(entry))
        entry[key] = rng.choice([json.dumps(rng.choice([*WRONG, [10**9, 10**9], 10**12])), "{", "[" * 5000, ""])
    else:
        key = rng.choice(["shape", "data_offsets", "dtype"])
        entry[key] = rng.choice(["F16", "I64", "BF16", "F8_E4M3", "X"]) if key == "dtype" else rng.choices(HUGE, k=2)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def resize(content: bytes, rng: random.Random) -> bytes:
    """An idx header that declares another type, other axes or other lengths."""
    damaged = bytearray(content)
    place = rng.choice([2, 3, 4, 8, 12])
    damaged[place : place + 4] = rng.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4, rng.randbytes(4)])
    return bytes(damaged)


BYTES = (flip, truncate, overwrite)
