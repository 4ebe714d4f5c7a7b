"""A hook of the build: where a checkout finds the other distributions of this repository."""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDERS: Final = {"tenantry-sdk": "sdk", "tenantry-devkit": "devkit"}


class CheckoutHook(BuildHookInterface[Any]):
    """Makes `pip install ".[demo]"` in a checkout take the SDK and the development kit from their
    folders there.

    A source distribution has no such folders: the wheel that is built from it, as each release is,
    needs them by name.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # the hook's interface
        """Replace what this wheel needs."""
        if version == "editable":
            # then the others may be editable too, which pip takes for other ones than those folders
            return
        if Path(self.root).parent.name.startswith("pip-"):
            return  # a clone that pip deletes, while it may keep the wheel in its cache
        core = self.metadata.core
        for needed in (core.dependencies, *core.optional_dependencies.values()):
            needed[:] = map(self._in_checkout, needed)

    def _in_checkout(self, requirement: str) -> str:
        """Name the folder of a distribution that is beside the sources."""
        name = re.split("[>=]=", requirement)[0]
        folder = Path(self.root, _FOLDERS.get(name.partition("[")[0], "none"))
        return f"{name} @ {folder.as_uri()}" if folder.is_dir() else requirement
