"""The compose file of the examples, run by podman-compose.

Debian's PostgreSQL and Caddy replace the images of their projects, which are not available here:
they are set up as those images are, as far as the compose file relies on it. A mail server that
writes to its log replaces the inbox.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.container import DEBIAN, Engine
from tests.support.installed import ROOT

PACKAGES: Final = ("caddy", "postgresql", "python3-aiosmtpd")
_POSTGRES: Final = """\
#!/bin/sh
# The official image: the superuser and the database by POSTGRES_*, then the scripts, then the server.
set -e
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
cd /var/lib/postgresql
install -d -o postgres /run/postgresql
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
if [ ! -e data/PG_VERSION ]; then
  chown postgres data
  as_postgres initdb --pgdata data --encoding UTF8 --auth trust --username "$POSTGRES_USER" \\
    --pwfile "$POSTGRES_PASSWORD_FILE" >/dev/null
  echo "host all all all scram-sha-256" >>data/pg_hba.conf
  as_postgres pg_ctl --pgdata data --wait --options "-c listen_addresses=''" start >/dev/null
  as_postgres createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
  for script in /docker-entrypoint-initdb.d/*.sh; do as_postgres "$script"; done
  as_postgres pg_ctl --pgdata data --wait stop >/dev/null
fi
exec setpriv --reuid postgres --regid postgres --clear-groups postgres -D data -c "listen_addresses=*"
"""
_STAND_INS: Final = {
    "docker.io/library/postgres:17": 'COPY --chmod=755 postgres.sh /\nENTRYPOINT ["/postgres.sh"]',
    "docker.io/library/caddy:2": (
        "ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/config\n"
        'ENTRYPOINT ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]'
    ),
    "docker.io/axllent/mailpit:latest": 'ENTRYPOINT ["python3", "-um", "aiosmtpd", "-n", "-l", "0.0.0.0:1025"]',
}


class Compose:
    """The project of the compose files, with a copy of the examples; ``variables`` are for the
    files.
    """

    def __init__(self, engine: Engine, folder: Path, **variables: str) -> None:
        self._engine = engine
        self._environment = engine.environment | variables
        self.folder = folder / "examples" / "container"
        shutil.copytree(
            ROOT / "examples" / "container", self.folder, ignore=shutil.ignore_patterns("secrets")
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of podman-compose on both files."""
        files = ["--file", "compose.yaml", "--file", "compose.development.yaml"]
        done = subprocess.run(
            [sys.executable, "-m", "podman_compose", "--in-pod", "false", *files, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done


def make_stand_ins(engine: Engine) -> None:
    """Make the images that the compose files name beside tenantry's, of `PACKAGES` in the image
    `DEBIAN`.
    """
    (engine.folder / "stand-ins").mkdir()
    (engine.folder / "stand-ins" / "postgres.sh").write_text(_POSTGRES)
    for tag, lines in _STAND_INS.items():
        engine.build(tag, engine.folder / "stand-ins", f"FROM {DEBIAN}\n{lines}\n")
