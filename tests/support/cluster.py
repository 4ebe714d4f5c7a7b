"""Copies of a PostgreSQL cluster: copying one takes a tenth of the time that making one takes."""

import subprocess
from pathlib import Path

from tenantry_devkit.embedded_postgres import EmbeddedServer


def make_cluster(folder: Path) -> Path:
    """Make a cluster below a folder, stopped; returns the folder."""
    server = EmbeddedServer(folder)  # whose stop leaves nothing to recover from
    server.start()
    server.stop()
    return folder


def copy_cluster(folder: Path, copy: Path) -> Path:
    """Copy the stopped cluster below a folder to below another one, which is returned. Owners and
    modes are kept.
    """
    copy.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(folder / "postgres"), str(copy / "postgres")], check=True)
    return copy
