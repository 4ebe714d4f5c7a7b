"""The modules that the image's build imports, for their bytecode, exist."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

CONTAINER_FILE: Final = Path(__file__).parents[2] / "Containerfile"


def test_the_build_imports_modules_that_exist() -> None:
    imports = re.findall(r'"-c", "import ([^;"]+)', CONTAINER_FILE.read_text("utf-8"))
    modules = [name for each in imports for name in each.split(", ")]
    assert "tenantry.cli.serve" in modules
    assert [name for name in modules if find_spec(name) is None] == []
