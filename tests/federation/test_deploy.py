"""The templates in deploy/ say what the programs do, and a node what it lacks."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from rrcluster.cli.terminal import parse
from rrcluster.errors import ConfigError
from rrcluster.federation.commands.member import ClientCommand, NodeCommand, node
from rrcluster.federation.commands.serve import ServeCommand
from rrcluster.federation.federation_command import ACTIONS

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
COMMANDS = {"client": ClientCommand, "node": NodeCommand, "serve": ServeCommand}


def check(line):
    """That a line is a command of `rrcluster federation` with options that it has."""
    action, *rest = line.split()
    assert action in ACTIONS
    parse(COMMANDS[action](), rest, prog=action)


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.service")), ids=lambda path: path.name)
def test_units_start_commands_that_exist(path):
    (line,) = re.findall(r"^ExecStart=\S+/rrcluster federation (.*)$", path.read_text(), flags=re.MULTILINE)
    check(line)
    assert "LimitCORE=0" in path.read_text()
    assert "MemoryMax=" in path.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd")
def test_systemd_understands_the_units(tmp_path):
    for path in DEPLOY.glob("*.service"):  # /opt/rrcluster is not on this machine
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/rrcluster/bin/rrcluster", "/bin/true"))
    units = sorted(map(str, tmp_path.iterdir()))
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    told = [line for line in checked.stderr.splitlines() if str(tmp_path) in line or "rrcluster" in line]
    assert (checked.returncode, told) == (0, [])


def test_compose_services_have_the_keys_that_the_specification_has():
    """Of its schema (compose-spec.json): those that the file uses, and which kind of value each takes."""
    kinds = {
        "profiles": list, "image": str, "network_mode": str, "read_only": bool, "tmpfs": list, "volumes": list,
        "ports": list, "command": str, "restart": str, "mem_limit": str,
    }  # fmt: skip
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(composed) == {"services"}
    for service in composed["services"].values():
        assert {name: type(value) for name, value in service.items()} == {name: kinds[name] for name in service}
        assert service["restart"] in ("no", "always", "on-failure", "unless-stopped")
        for volume in service["volumes"]:
            assert re.fullmatch(r"\./\w+:/\w+(:ro)?", volume)


def test_an_image_holds_the_package_and_nothing_that_lies_beside_it():
    copied = re.findall(r"^COPY (.*) /source", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt", "rrcluster"}
    assert all((DEPLOY.parent / name).exists() for name in names)


def test_what_the_image_copies_can_be_installed(tmp_path):
    """The steps of the Dockerfile but for the network: its extras exist, and its files make the package."""
    (steps,) = re.findall(
        r'^RUN pip install .* "/source\[(.*)\]"', (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE
    )
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert set(steps.split(",")) <= set(project["optional-dependencies"])
    source = tmp_path / "source"
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(DEPLOY.parent / name, source)
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(DEPLOY.parent / "rrcluster", source / "rrcluster", ignore=hidden)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*pip, "--wheel-dir", tmp_path, source], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if name.startswith("rrcluster/")}
    there = {str(path.relative_to(source)) for path in (source / "rrcluster").rglob("*.py")}
    assert there <= held
    assert project["name"] in project["scripts"]  # its entry point


def test_the_daemon_has_no_network_and_the_node_no_data():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        check(service["command"])
    assert services["client"]["network_mode"] == "none"
    assert not any("data" in volume for volume in services["node"]["volumes"])
    assert "PrivateNetwork=true" in (DEPLOY / "rrcluster-client@.service").read_text()


def test_a_node_says_what_it_lacks(tmp_path):
    with pytest.raises(ConfigError, match="--server host:port"):
        node([str(tmp_path)])
    with pytest.raises(ConfigError, match=r"ca\.pem is missing"):
        node([str(tmp_path), "--server", "127.0.0.1:9"])


def test_nginx_passes_what_nodes_call_and_keeps_nothing():
    text = (DEPLOY / "nginx-flower.conf").read_text()
    (calls,) = re.findall(r"location ~ \^/v1/fleet/\((.*)\)\$", text)
    assert set(calls.split("|")) == {
        "activate-node", "deactivate-node", "send-node-heartbeat", "confirm-message-received",
        "pull-messages", "pull-object", "push-messages", "push-object",
    }  # fmt: skip
    for setting in ("access_log off", ".log crit;", "proxy_request_buffering off", "proxy_max_temp_file_size 0"):
        assert setting in text
    text = (DEPLOY / "nginx.conf").read_text()
    for setting in ("access_log off", ".log crit;", "limit_conn "):
        assert setting in text
