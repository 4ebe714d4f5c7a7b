"""Import paths of earlier versions: they work, and say where their content has moved."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["testing", "simulator"])
def test_former_import_path_warns_and_gives_the_same_objects(name: str) -> None:
    sys.modules.pop(f"tenantry.{name}", None)
    with pytest.warns(DeprecationWarning, match=f"use tenantry_devkit.{name}"):
        former = importlib.import_module(f"tenantry.{name}")
    assert former is importlib.import_module(f"tenantry_devkit.{name}")


def test_former_plugin_name_gives_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["tenantry.testing"]')
    result = pytester.runpytest_subprocess("--fixtures", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["tenantry -- *"])
