"""nginx with the templates of deploy/, between nodes and a server on the loopback interface."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from network_lab import free_port

from rrcluster.federation.children import stop_processes

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
STREAM = STREAM if NGINX and STREAM.exists() else None
DEPLOY = Path(__file__).parent.parent.parent / "deploy"
MAIN = """
{load}
{user}
worker_processes 1;
pid {own}/nginx.pid;
error_log {own}/error.log;
events {{}}
{context} {{
    access_log {access};
    {temporary}
    include {own}/federation.conf;
}}
"""
KINDS = ("client_body:requests", "proxy:answers", "fastcgi:others", "uwsgi:others", "scgi:others")


class Nginx:
    """A process with a template; its port, the server's address and the paths are changed, and nothing else."""

    def __init__(self, folder, template):
        self.folder, self.own, self.template = folder, folder / "nginx", template

    def __call__(self, server):
        """Start in front of the server at this address; where nodes connect to."""
        port, text = free_port(), (DEPLOY / self.template).read_text()
        stream = self.template == "nginx.conf"
        changes = [
            ("listen 443", f"listen 127.0.0.1:{port}"),
            ("/var/log/nginx/federation.log", f"{self.own}/error.log"),
        ]
        if stream:
            changes += [("proxy_pass 127.0.0.1:9092", f"proxy_pass {server}")]
        else:
            changes += [
                ("https://127.0.0.1:9093", f"https://{server}"),
                ("/srv/rrcluster/trial/server/superlink/", f"{self.folder}/superlink/"),
                ("/srv/rrcluster/trial/server/", f"{self.folder}/"),
            ]
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        self.own.mkdir()
        (self.own / "federation.conf").write_text(text)
        temporary = (
            ""
            if stream
            else "\n".join(
                f"{kind}_temp_path {self.own}/{place};" for kind, place in (pair.split(":") for pair in KINDS)
            )
        )
        filled = MAIN.format(
            own=self.own,
            user="user root;" if os.geteuid() == 0 else "",
            load=f"load_module {STREAM};" if stream else "",
            context="stream" if stream else "http",
            access="off" if stream else f"{self.own}/access.log",
            temporary=temporary,
        )
        (self.own / "nginx.conf").write_text(filled)
        command = [NGINX, "-e", str(self.own / "error.log"), "-c", str(self.own / "nginx.conf"), "-g", "daemon off;"]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        folders = [self.own / name for name in ("requests", "answers")]
        self._folders = {path: path.stat().st_mtime_ns for path in folders if path.exists()}
        self.process = subprocess.Popen(command)
        return f"127.0.0.1:{port}"

    def stop(self):
        stop_processes([self.process])

    def written(self):
        """What it has written since it started: folders in which a file was, if only for a moment, and log lines."""
        folders = [path.name for path, changed in self._folders.items() if path.stat().st_mtime_ns != changed]
        logs = list(self.own.glob("*.log"))
        lines = [line for path in logs for line in path.read_text().splitlines()]
        return folders + [line for line in lines if not re.search(r"\[notice\]", line)]
