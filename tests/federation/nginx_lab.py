"""nginx with the template of deploy/, between nodes and a gate on the loopback interface."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from rrcluster.federation.children import free_port, stop_processes

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
TEMPLATE = Path(__file__).parent.parent.parent / "deploy" / "nginx.conf"
MAIN = """
{user}
worker_processes 1;
pid {own}/nginx.pid;
error_log {own}/error.log;
events {{}}
http {{
    access_log {own}/access.log;
    client_body_temp_path {own}/requests;
    proxy_temp_path {own}/answers;
    fastcgi_temp_path {own}/others;
    uwsgi_temp_path {own}/others;
    scgi_temp_path {own}/others;
    include {own}/federation.conf;
}}
"""


class Nginx:
    """A process with the template; its port, the gate's address and the paths are changed, and nothing else."""

    def __init__(self, folder):
        self.folder, self.own = folder, folder / "nginx"

    def __call__(self, gate):
        """Start in front of the gate at this address; where nodes connect to."""
        port, text = free_port(), TEMPLATE.read_text()
        for before, after in (
            ("listen 443", f"listen 127.0.0.1:{port}"),
            ("https://127.0.0.1:9092", f"https://{gate}"),
            ("/var/log/nginx/federation.log", f"{self.own}/error.log"),
            ("/srv/rrcluster/trial/server/", f"{self.folder}/"),
            ("/srv/rrcluster/trial/", f"{self.folder}/"),
        ):
            assert before in text
            text = text.replace(before, after)
        self.own.mkdir()
        (self.own / "federation.conf").write_text(text)
        user = "user root;" if os.geteuid() == 0 else ""
        (self.own / "nginx.conf").write_text(MAIN.format(own=self.own, user=user))
        command = [NGINX, "-e", str(self.own / "error.log"), "-c", str(self.own / "nginx.conf"), "-g", "daemon off;"]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        self._folders = {path: path.stat().st_mtime_ns for path in (self.own / "requests", self.own / "answers")}
        self.process = subprocess.Popen(command)
        return f"127.0.0.1:{port}"

    def stop(self):
        stop_processes([self.process])

    def written(self):
        """What it has written since it started: folders in which a file was, if only for a moment, and log lines."""
        folders = [path.name for path, changed in self._folders.items() if path.stat().st_mtime_ns != changed]
        lines = [line for name in ("access.log", "error.log") for line in (self.own / name).read_text().splitlines()]
        return folders + [line for line in lines if not re.search(r"\[notice\]", line)]
