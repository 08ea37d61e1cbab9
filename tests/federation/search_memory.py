"""`python search_memory.py FILE.npy PID...`: how often a stretch of an array occurs in the memory of processes.

It is looked for as whole numbers of 64 and of 32 bits, as floats of 32 bits, and as in the file. This is a process of
its own, since who searches for something has it in memory.
"""

import sys
from pathlib import Path

import numpy as np

CHUNK, LENGTH = 2**24, 8


def patterns(values):
    """The stretch that starts with the largest value: nothing else looks like that."""
    stretch = values[np.argmax(np.abs(values[:-LENGTH])) :][:LENGTH]
    whole = stretch.astype(np.int64)
    return {stretch.tobytes(), whole.tobytes(), whole.astype(np.uint32).tobytes(), stretch.astype("f4").tobytes()}


def writable(pid):
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, rights = line.split()[:2]
        first, last = (int(part, 16) for part in addresses.split("-"))
        if rights.startswith("rw"):
            yield from ((start, min(CHUNK, last - start)) for start in range(first, last, CHUNK))


if __name__ == "__main__":
    wanted, count = patterns(np.load(sys.argv[1])), 0
    for pid in sys.argv[2:]:
        with Path(f"/proc/{pid}/mem").open("rb") as memory:
            for start, length in writable(pid):
                try:
                    memory.seek(start)
                    content = memory.read(length)
                except OSError:  # not there any more
                    continue
                count += sum(content.count(pattern) for pattern in wanted)
    print(count)
