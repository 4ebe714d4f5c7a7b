"""Debian's gateways and load balancers, started with the configurations of ``examples/``."""

import asyncio
import os
import pwd
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.commands import Running
from tests.support.ports import free_port
from tests.support.required import debian_program
from tests.support.serving import LOOPBACK

BALANCERS: Final = ("nginx", "haproxy")
EXAMPLES: Final = Path(__file__).parents[2] / "examples"

_OWN: Final = "127.0.0.0/8"

_NGINX: Final = """\
error_log stderr notice;
pid {folder}/nginx.pid;
user {user};
worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/example.conf;
}}
"""


@asynccontextmanager
async def running_balancer(
    name: str, folder: Path, services: Sequence[int], own: str = _OWN
) -> AsyncIterator[int]:
    """The port of one of `BALANCERS` in front of two services on these ports, on loopback; see
    `balancing`.
    """
    port = free_port()
    async with balancing(
        name, folder, *(f"{LOOPBACK}:{each}" for each in (port, *services)), own=own
    ):
        yield port


@asynccontextmanager
async def balancing(
    name: str,
    folder: Path,
    listening: str,
    one: str,
    two: str,
    *,
    own: str = _OWN,
    within: Sequence[str] = (),
) -> AsyncIterator[None]:
    """One of `BALANCERS` at an address, in front of two services, as in
    ``examples/load-balancing``.

    Nothing but the addresses is changed: ``own`` is the network of those who are not limited.
    ``within`` is what its command has to begin with. It is required (`tests.support.required`).
    """
    program = debian_program(name)
    changes = {
        f"127.0.0.1:{old}": new
        for old, new in zip((8080, 3001, 3002), (listening, one, two), strict=True)
    }
    changes[_OWN] = own
    if name == "nginx":
        command = await start_nginx(
            program, folder, example("load-balancing/nginx.conf", changes), within
        )
        ready = NGINX_READY
    else:
        file = folder / "haproxy.cfg"
        file.write_text(example("load-balancing/haproxy.cfg", changes))
        command = await start(*within, program, "-W", "-f", str(file), folder=folder)
        ready = "Loading success"
    try:
        await command.until(ready, "err")
        yield
    finally:
        command.kill()
        await command.wait()


def example(name: str, changes: Mapping[str, str]) -> str:
    """An example's text with these parts replaced in turn, each of which must be there."""
    text = (EXAMPLES / name).read_text("utf-8")
    for old, new in changes.items():
        assert old in text, f"{old} is not in {name}"
        text = text.replace(old, new)
    return text


NGINX_READY: Final = "start worker process "
"""What nginx says once it listens."""


async def start_nginx(
    program: str, folder: Path, configuration: str, within: Sequence[str] = ()
) -> Running:
    """Debian's nginx with what a file in ``conf.d`` says."""
    (folder / "example.conf").write_text(configuration)
    user = pwd.getpwuid(os.geteuid()).pw_name
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, user=user))
    arguments = (
        "-p",
        str(folder),
        "-c",
        str(folder / "nginx.conf"),
        "-e",
        "stderr",
        "-g",
        "daemon off;",
    )
    return await start(*within, program, *arguments, folder=folder)


async def start(program: str, *arguments: str, folder: Path) -> Running:
    """A program in this folder, without tenantry's variables."""
    own = {name: str(folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **own},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    return Running(process)
