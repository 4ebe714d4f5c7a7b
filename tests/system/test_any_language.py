"""The services of docs/how-to/any-language.md, in Go, Ruby and PHP."""

import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from tests.sdk.sdk_support import Served, serving
from tests.support.documentation import block_of
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.protected_service import check_outage, check_rejections, protected_service
from tests.support.required import debian_program
from tests.support.serving import served as served_app

PAGE: Final = "how-to/any-language.md"
GO: Final = "package main"
RUBY: Final = 'require "net/http"'
RACK: Final = 'require "json"'
PHP: Final = "<?php\ndeclare"
PHP_PAGE: Final = "<?php\nrequire"
_SHOWN_PORT: Final = "8000"
RACK_SERVER: Final = """
require "socket"

def run(application) = $application = application
load "config.ru"

server = TCPServer.new("127.0.0.1", ENV.fetch("PORT").to_i)
loop do
  client = server.accept
  client.gets
  env = {}
  until (line = client.gets.chomp).empty?
    name, value = line.split(": ", 2)
    key = "HTTP_#{name.upcase.tr("-", "_")}"
    env[key] = [env[key], value].compact.join(", ")
  end
  status, headers, body = $application.call(env)
  fields = headers.merge("content-length" => body.sum(&:bytesize), "connection" => "close")
  lines = ["HTTP/1.1 #{status} Answer", *fields.map { |name, value| "#{name}: #{value}" }, "", ""]
  client.write(lines.join("\\r\\n"), *body)
  client.close
end
"""
"""A server of Rack applications: Ruby's standard library has none."""
ANOTHER_SERVER: Final = Starlette(routes=[Mount("/", PlainTextResponse("{}"))])
"""It answers 200 to everything, and names no caller."""


@pytest.fixture(scope="module")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    with postgres.database() as conninfo:
        async with serving(conninfo) as running:
            yield running


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def go_service(folder: Path, port: int) -> list[str]:
    go = debian_program("go", "golang-go")
    (folder / "main.go").write_text(block_of(PAGE, GO).replace(_SHOWN_PORT, str(port)))
    build = [go, "build", "-o", "service", "main.go"]
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "GOTOOLCHAIN": "local"}
    subprocess.run(build, cwd=folder, env=environment, check=True)
    return ["./service"]


def ruby_service(folder: Path, _port: int) -> list[str]:
    ruby = debian_program("ruby")
    (folder / "tenantry.rb").write_text(block_of(PAGE, RUBY))
    (folder / "config.ru").write_text(block_of(PAGE, RACK))
    (folder / "server.rb").write_text(RACK_SERVER)
    return [ruby, "server.rb"]


def php_service(folder: Path, port: int) -> list[str]:
    php = debian_program("php", "php-cli")
    (folder / "tenantry.php").write_text(block_of(PAGE, PHP))
    (folder / "reports.php").write_text(block_of(PAGE, PHP_PAGE))
    return [php, "-S", f"127.0.0.1:{port}", "reports.php"]


@pytest.mark.parametrize("service", [go_service, ruby_service, php_service])
async def test_service_answers_its_callers_as_tenantry_does(
    service: Callable[[Path, int], list[str]], served: Served, nowhere: str, tmp_path: Path
) -> None:
    port = free_port()
    command = service(tmp_path, port)
    acme = await served.service.organization()
    async with protected_service(command, tmp_path, port, served.url, PORT=str(port)) as client:
        await check_rejections(client, served, acme)
    async with served_app(ANOTHER_SERVER) as elsewhere:
        for address in (nowhere, elsewhere):
            async with protected_service(
                command, tmp_path, port, address, PORT=str(port)
            ) as client:
                await check_outage(client)
