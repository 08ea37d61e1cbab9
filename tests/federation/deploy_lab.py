"""Starts the units and the containers' commands of deploy/ as their files say, without systemd and Docker.

    unshare --mount --net python tests/federation/deploy_lab.py FOLDER units|compose

In name spaces of its own, as the user that the templates name: root file system read-only but for what they list, /tmp
and home of their own, what they hide hidden, no capabilities, and no network for the daemon. It runs a whole training,
serve, two daemons and two nodes, and prints their exit statuses and the end of what they said.
"""

import contextlib
import fcntl
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import yaml
from folder_lab import REHEARSAL, signed

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
USER = 65534
HOST = "federation.example.org"
NAMES = ("m0", "m1")


def raise_loopback():
    """The loopback interface of this name space."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(sock, 0x8914, request)


def sandbox(script, command, *, network):
    """A shell that makes the name spaces, then the command as the unprivileged user."""
    drop = f"setpriv --reuid={USER} --regid={USER} --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs"
    text = "\n".join(["set -e", *script, "ulimit -c 0", f"exec {drop} {shlex.join(command)}"])
    unshare = ["unshare", "--mount", *([] if network else ["--net"])]
    return [*unshare, "bash", "-c", text]


def read_only_root(writable):
    """Everything read-only, but for these folders and the kernel's own."""
    keep = "|".join(["/proc", "/sys", "/dev", *map(re.escape, map(str, writable))])
    return [
        f"findmnt -rno TARGET | grep -Ev '^({keep})(/|$)' | sort -r | while read -r place; do "
        'mount -o remount,bind,ro "$place" 2>/dev/null || true; done',
    ]


def home_of_own(python):
    """No home of anybody's, but for the interpreter, where it lies in one."""
    kept = next((path for path in python.parents if path.parent == Path("/root")), None)
    if kept is None:
        return ["mount -t tmpfs tmpfs /root"]
    return [
        "mkdir -p /run/kept && mount -t tmpfs tmpfs /run/kept && mkdir /run/kept/python",
        f"mount --bind {kept} /run/kept/python",
        "mount -t tmpfs -o mode=755 tmpfs /root",
        f"mkdir {kept} && mount --bind /run/kept/python {kept}",
    ]


def of_unit(path, base, instance=""):
    """The command of a unit in the sandbox that it asks for."""
    text = path.read_text().replace("%i", instance)
    settings = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, flags=re.MULTILINE):
        settings.setdefault(name, []).append(value)
    (line,) = settings["ExecStart"]
    program, *arguments = line.split()
    assert program == "/opt/rrcluster/bin/rrcluster"
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["PrivateTmp"] == settings["NoNewPrivileges"] == ["true"]
    writable = [place for value in settings.get("ReadWritePaths", []) for place in value.split()]
    script = [
        "mount -t tmpfs -o mode=755 tmpfs /srv && mkdir /srv/rrcluster /srv/data",
        f"mount --bind {base} /srv/rrcluster",
        *(f"mount --bind {place} {place}" for place in writable),
        "mount -t tmpfs -o mode=1777 tmpfs /tmp",
    ]
    if "ProtectHome" in settings:
        script += home_of_own(Path(sys.executable).resolve())
    for place in " ".join(settings.get("InaccessiblePaths", [])).split():
        name = place.removeprefix("-")
        hide = (
            f"if [ -d {name} ]; then mount -t tmpfs -o mode=000 tmpfs {name}; else mount --bind /run/hidden {name}; fi"
        )
        script += ["mkdir -p /run && (umask 777; : > /run/hidden)", f"[ ! -e {name} ] || {{ {hide}; }}"]
    script += read_only_root([*writable, "/tmp"])
    return sandbox(script, [sys.executable, "-m", "rrcluster", *arguments], network="PrivateNetwork" not in settings)


def of_service(name, base, member):
    """The command of a container in the sandbox that compose.yaml asks for."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][name]
    script, writable = ["mount -t tmpfs -o mode=755 tmpfs /srv"], []
    for number, volume in enumerate(service["volumes"]):
        source, place, *access = volume.split(":")
        folder = base / {"./north": member, "./trial": "trial", "./data": "."}[source]
        script += [f"mkdir /srv/{number} && mount --bind {folder} /srv/{number}"]
        writable += [place] if not access else []
    places = [volume.split(":")[1] for volume in service["volumes"]]
    script += ["mount -t tmpfs -o mode=1777 tmpfs /tmp", *home_of_own(Path(sys.executable).resolve())]
    script += [f"mount --bind /srv/{number} {place}" for number, place in enumerate(places)]
    script += read_only_root([*writable, "/tmp"])
    command = re.sub(r" --data \S+ --client-column \S+", "", service["command"])  # of a rehearsal: it has none
    return sandbox(
        script,
        [sys.executable, "-m", "rrcluster", "federation", *command.split()],
        network=service.get("network_mode") != "none",
    )


def commands(kind, base):
    for name in NAMES:
        if kind == "units":
            yield f"client {name}", of_unit(DEPLOY / "rrcluster-client@.service", base, name)
            yield f"node {name}", of_unit(DEPLOY / "rrcluster-node@.service", base, name)
        else:
            yield f"client {name}", of_service("client", base, name)
            yield f"node {name}", of_service("node", base, name)
    if kind == "units":
        yield "serve", of_unit(DEPLOY / "rrcluster-serve.service", base)
    else:
        yield "serve", of_service("serve", base, "")


def run(base, kind):
    raise_loopback()
    hosts = base / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {HOST}\n")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    settings = {**REHEARSAL, "num_rounds": 1, "participation": "everybody"}
    settings.pop("sample_rate")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        signed(base, settings, "--mode", "plain", "--hosts", HOST, counts=(4, 5))
    for name in NAMES:
        shutil.copy(base / "trial" / "ca.pem", base / name / "ca.pem")
    for path in [base, *base.rglob("*")]:
        os.chown(path, USER, USER)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    running, logs = {}, {}
    for name, command in commands(kind, base):
        logs[name] = base / f"{name}.log"
        with logs[name].open("w") as log:
            running[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", env=environment)
    try:
        status = running["serve"].wait(420)
    except subprocess.TimeoutExpired:
        status = None
    ended = {name: process.poll() for name, process in running.items()}
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    time.sleep(1)
    for process in running.values():
        process.kill()
    return {
        "serve": status,
        "ended": ended,
        "models": [(base / name / "released" / "models.safetensors").exists() for name in NAMES],
        "said": {name: path.read_text()[-1500:] for name, path in logs.items()},
    }


@contextlib.contextmanager
def mount_points(kind):
    """Where containers have their volumes: empty folders, gone at the end."""
    made = [Path(place) for place in ("/member", "/trial", "/data") if kind == "compose" and not Path(place).exists()]
    try:
        for place in made:
            place.mkdir()
        yield
    finally:
        for place in made:
            place.rmdir()


if __name__ == "__main__":
    with mount_points(sys.argv[2]):
        print(json.dumps(run(Path(sys.argv[1]), sys.argv[2])))
