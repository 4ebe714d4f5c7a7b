"""A server in C that bounds what the service can reach: it answers the same without any work."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

from bench.contestant import Contestant, Dataset, Job, Server
from bench.ours import PATHS
from bench.serving import serving
from bench.support import KEYS, PROJECTS
from tests.support.ports import free_port

NAME: Final = "nginx"
# One process without a log, which keeps a connection open for any number of requests.
_CONFIGURATION: Final = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  open_file_cache max=10;
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 200 "OK"; }}
    location = {path} {{ default_type application/json; alias {folder}/list.json; }}
  }}
}}
"""
_PROJECT: Final = {
    "id": "t1_1",
    "orgId": "t1",
    "name": "Project 1",
    "description": None,
    "mode": "live",
    "createdAt": "2026-01-01T00:00:00.000000Z",
    "updatedAt": "2026-01-01T00:00:00.000000Z",
}


class Nginx(Contestant):
    """Sends a list of the same size, and ``OK`` for everything else."""

    name = NAME
    title = "a server in C, one process, answering a constant of the same size"
    jobs = (Job.WEBHOOK, Job.LIST)
    processes = (1,)
    is_peer = False
    does_work = False

    def install(self) -> str:
        """Return the version of Debian's nginx. Raises `RuntimeError` if it is missing."""
        done = subprocess.run([_program(), "-v"], capture_output=True, text=True, check=True)
        return done.stderr.strip().removeprefix("nginx version: ")

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Start the server; it needs no data."""
        port, folder = free_port(), data.folder
        answer = {"data": [_PROJECT] * PROJECTS, "nextCursor": None}
        (folder / "list.json").write_text(json.dumps(answer, separators=(",", ":")))
        configuration = folder / "nginx.conf"
        configuration.write_text(
            _CONFIGURATION.format(folder=folder, port=port, path=PATHS[Job.LIST])
        )
        command = [_program(), "-p", str(folder), "-c", str(configuration)]
        header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
        keys = [f"Bearer svc_live_{number:049}" for number in range(KEYS)]
        server = Server(port, 0, PATHS[job], header, keys)
        with serving(command, folder, {}, server, folder / "log") as running:
            yield running


def _program() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        raise RuntimeError("nginx is missing; install it with: apt-get install nginx-light")
    return found
