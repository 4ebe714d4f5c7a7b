"""Servers that bound what the service can reach: a C server and a Python server that answer
constants, and the service's routes without a database.
"""

import contextlib
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import support
from bench.baselines.serving import serving
from bench.contestant import Dataset, Job, Server
from bench.ours import PATHS, PLANS_WITHOUT_LIMITS
from tenantry.domain import api_keys
from tenantry.domain.permissions import Mode

WITHOUT_DATABASE: Final = "no-database"
CONSTANT: Final = "constant"
NGINX: Final = "nginx"
_ROOT: Final = Path(__file__).parents[1]
_MANY: Final = 1_000_000_000
# One process without a log, which keeps a connection open for any number of requests.
_NGINX_CONFIGURATION: Final = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests {many};
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


@dataclass(frozen=True)
class UpperBound(ABC):
    """A server that answers like the service and does less; it has no database to check."""

    name: str
    title: str
    jobs: Sequence[Job]
    processes: Sequence[int] = (1,)

    @abstractmethod
    def install(self) -> str:
        """Return the version, if it is not part of this repository. Raises `RuntimeError` if it is
        missing.
        """

    @abstractmethod
    def _command(self, port: int, data: Dataset) -> Sequence[str]:
        """Write what the server needs into the folder of ``data``; return its command."""

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Start the server; it needs no data."""
        port = support.free_port()
        command = self._command(port, data)
        url = f"http://127.0.0.1:{port}{PATHS[Job.LIST]}"
        header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
        keys = [api_keys.DEFAULT_FORMAT.compose(Mode.LIVE, b"%032d" % n) for n in range(data.keys)]
        with serving(command, _ROOT, {}, url=url, log=data.folder / "log") as pid:
            yield Server(port, pid, PATHS[job], header, [f"Bearer {key}" for key in keys])


class PythonBound(UpperBound):
    """A server of `bench.upper_bound_server`."""

    def install(self) -> str:
        """Do nothing: it is part of this repository."""
        return ""

    def _command(self, port: int, data: Dataset) -> Sequence[str]:
        catalog = data.folder / "plans.toml"
        catalog.write_text(PLANS_WITHOUT_LIMITS)
        arguments = [self.name, str(port), data.secret, str(catalog)]
        return [sys.executable, "-m", "bench.upper_bound_server", *arguments]


class NginxBound(UpperBound):
    """A server in C, which sends a list of the same size and ``OK`` for everything else."""

    def install(self) -> str:
        """Return the version of Debian's nginx."""
        program = _nginx()
        if program is None:
            raise RuntimeError("nginx is missing; install it with: apt-get install nginx-light")
        done = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
        return done.stderr.strip().removeprefix("nginx version: ")

    def _command(self, port: int, data: Dataset) -> Sequence[str]:
        documents = ",".join(support.project_documents())
        answer = f'{{"data":[{documents}],"nextCursor":null}}'
        (data.folder / "list.json").write_text(answer)
        configuration = data.folder / "nginx.conf"
        configuration.write_text(
            _NGINX_CONFIGURATION.format(
                folder=data.folder, port=port, path=PATHS[Job.LIST], many=_MANY
            )
        )
        return [_nginx() or NGINX, "-p", str(data.folder), "-c", str(configuration)]


def _nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def servers() -> list[UpperBound]:
    """Return all of them."""
    return [
        PythonBound(
            WITHOUT_DATABASE,
            "the service's routes, with a store that returns constants",
            tuple(Job),
        ),
        PythonBound(CONSTANT, "the same server answering OK", (Job.WEBHOOK, Job.LIST)),
        NginxBound(
            NGINX,
            "a server in C, one process, answering a constant of the same size",
            (Job.WEBHOOK, Job.LIST),
        ),
    ]
