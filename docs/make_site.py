"""Builds the documentation site into site/: `.venv/tools/bin/python docs/make_site.py VERSION`.

Each release has a folder named after its minor version (`0.1`), `latest` is a copy of the newest,
and `versions.json` lists them for the menu of the pages. Folders of other releases in site/ stay as
they are: to publish, begin with the site that is published, and put the result in its place. Links
and anchors that lead nowhere fail the build. Forges' servers show `404.html` for a missing address,
at any depth, so its link is absolute.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
_SITE: Final = "site"
_START: Final = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>tenantry</title><link rel="icon" href="latest/assets/icon.svg">
<meta http-equiv="refresh" content="0; url=latest/"><a href="latest/">Documentation of tenantry</a></html>
"""
_MISSING: Final = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Page not found - tenantry</title><link rel="icon" href="{address}latest/assets/icon.svg">
<style>body {{ color-scheme:light dark; font: 1.1em sans-serif; margin: 3em }}</style>
<h1>Page not found</h1><p>The page may have moved in another version. Start at the
<a href="{address}latest/">documentation of tenantry</a> and search for it.</p></html>
"""


def build(version: str) -> None:
    """Build this release's pages and update the list of releases. Exits with the generator's status
    if it fails.
    """
    folder = ".".join(version.split(".")[:2])
    site = _ROOT / _SITE
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    environment = {**os.environ, "TENANTRY_SITE_DIR": f"{_SITE}/{folder}"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(done.returncode)
    listing = site / "versions.json"
    known: list[dict[str, Any]] = json.loads(listing.read_text("utf-8")) if listing.exists() else []
    versions = {one["version"]: {**one, "aliases": []} for one in known}
    versions[folder] = {"version": folder, "title": version, "aliases": []}
    ordered = sorted(
        versions.values(),
        key=lambda one: [int(part) for part in one["version"].split(".")],
        reverse=True,
    )
    ordered[0]["aliases"] = ["latest"]
    listing.write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")
    (site / folder / "404.html").unlink()  # its links hold in that folder alone
    shutil.rmtree(site / "latest", ignore_errors=True)
    shutil.copytree(site / ordered[0]["version"], site / "latest")
    (site / "index.html").write_text(_START, "utf-8")
    urls = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    (site / "404.html").write_text(_MISSING.format(address=urls["Documentation"]), "utf-8")


if __name__ == "__main__":
    [_, release] = sys.argv
    build(release)
