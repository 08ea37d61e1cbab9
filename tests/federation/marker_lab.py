"""Plants values in one member's messages and looks for them in the server's memory and files.

    python tests/federation/marker_lab.py FOLDER plain|secure

The server and the daemons are forks of this process, over sockets. Prints JSON: where what was found.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from folder_lab import HONEST, REHEARSAL, SECURE, signed
from kill_lab import start, start_daemon, stop

from rrcluster.client import ClientSide
from rrcluster.federation import collect
from rrcluster.federation.secagg.secure_client import SecureClient
from rrcluster.privacy.joint import JointMechanism
from rrcluster.server.server import Charge

UPDATE, MESSAGE = 0.0012345679, 12_345_678  # of every coordinate; of the first eight


def needles(base):
    """What must not be found, by name: the update as it travels in plain mode, the sum before and after its noise."""
    update = np.full(4, UPDATE, dtype=np.float32).tobytes()
    wanted = {"update": update}
    if (base / "values.npy").exists():
        values = np.load(base / "values.npy")[:4]
        wanted |= {
            "message": np.full(2, MESSAGE, dtype=np.int64).tobytes(),
            "message as words": np.full(4, MESSAGE, dtype=np.uint32).tobytes(),
            "noisy message": values.astype(np.int64).tobytes()[:16],
            "noisy message as words": values.astype(np.uint32).tobytes(),
            "masked words": np.load(base / "words.npy")[:4].tobytes(),  # which the server does have
        }
    return wanted


def plant_in_daemon(base):
    answer, sums, mask = ClientSide.answer, JointMechanism.sum_messages, SecureClient.mask

    def marked_answer(self, guidance, clients, keys):
        reports, memory = answer(self, guidance, clients, keys)
        reports.updates[:] = UPDATE
        return reports, memory

    def marked_mask(self, values, *, task_digest):
        words = mask(self, values, task_digest=task_digest)
        np.save(base / "words.npy", words)
        np.save(base / "values.npy", values)
        return words

    ClientSide.answer, SecureClient.mask = marked_answer, marked_mask
    JointMechanism.sum_messages = lambda self, reports, **which: np.where(
        np.arange(self.message_width) < 8, MESSAGE, sums(self, reports, **which) * 0
    )


def plant_in_server(base):
    """Wait at three moments until the memory has been searched: before the charge, before reveal, after the round."""
    write, ask = Charge.__call__, collect.SecureCollect._ask

    def pause(moment):
        (base / f"at {moment}").touch()
        while not (base / f"searched {moment}").exists():
            time.sleep(0.01)

    def paused_charge(self):
        pause("charge")
        write(self)

    def paused_ask(self, attempt, guidance, stage, messages):
        if stage == "reveal" or (stage == "advertise" and attempt.round_index):
            pause(f"{stage} of round {attempt.round_index}")
        return ask(self, attempt, guidance, stage, messages)

    Charge.__call__, collect.SecureCollect._ask = paused_charge, paused_ask


def found_in_memory(process, wanted):
    found = dict.fromkeys(wanted, 0)
    proc = Path(f"/proc/{process}")
    with (proc / "mem").open("rb", buffering=0) as memory:
        for line in (proc / "maps").read_text().splitlines():
            span, mode = line.split()[:2]
            if not mode.startswith("rw") or "[v" in line:
                continue
            first, last = (int(part, 16) for part in span.split("-"))
            memory.seek(first)
            try:
                content = memory.read(last - first)
            except OSError:
                continue
            for name, needle in wanted.items():
                found[name] += content.count(needle)
    return found


def found_in_files(folders, wanted):
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return sorted(f"{name} in {path.name}" for path in files for name, needle in wanted.items()
                  if needle in path.read_bytes())  # fmt: skip


def run(base, mode):
    options = HONEST if mode == "secure" else ["--mode", "plain"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trial = signed(base, {**REHEARSAL, **SECURE}, *options)
    members = [base / f"m{place}" for place in range(3)]
    out = base / "said"
    out.mkdir()

    def plant():
        for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
            os.dup2(os.open(out / name, os.O_WRONLY | os.O_CREAT), number)
        plant_in_server(base)

    daemons = [
        start_daemon(members[0]),
        start_daemon(members[1], lambda: plant_in_daemon(base)),
        start_daemon(members[2]),
    ]
    serve = ["serve", trial, "--transport", "local", "--members", base, "--quiet"]
    server, searched = start(serve, plant), {}
    try:
        while True:
            done, status = os.waitpid(server, os.WNOHANG)
            if done:
                break
            for path in base.glob("at *"):
                moment = path.name.removeprefix("at ")
                if moment not in searched:
                    searched[moment] = found_in_memory(server, needles(base))
                    (base / f"searched {moment}").touch()
            time.sleep(0.01)
    finally:
        for child in daemons:
            stop(child)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "memory": searched,
        "files": found_in_files([trial, out], needles(base)),
        "logs": found_in_files(members, {"update": needles(base)["update"], "text": str(UPDATE)[:9].encode()}),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2])))
