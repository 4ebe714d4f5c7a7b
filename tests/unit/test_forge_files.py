"""The files for forges and editors, beside what they repeat. `make check` compares them with their
schemas.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
WORKFLOWS: Final = ROOT / ".github/workflows"
_CLASSIFIER: Final = "Programming Language :: Python :: 3."
_PINNED: Final = re.compile(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def document(name: str) -> dict[str, Any]:
    """A YAML file of the repository."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return loaded


def classifiers(part: str) -> list[str]:
    """The classifiers of a distribution."""
    project = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]
    found: list[str] = project["classifiers"]
    return found


def test_ci_tests_every_python_and_system_that_the_service_and_the_development_kit_name() -> None:
    matrix = document(".github/workflows/ci.yml")["jobs"]["python"]["strategy"]["matrix"]
    runners = {"ubuntu-24.04": "Operating System :: POSIX :: Linux"}
    tested = [f"{_CLASSIFIER}{version.removeprefix('3.')}" for version in matrix["python"]]
    tested += [runners[system] for system in matrix["system"]]

    for part in (".", "devkit"):
        named = [
            each
            for each in classifiers(part)
            if re.match(rf"{re.escape(_CLASSIFIER)}\d|Operating System", each)
        ]
        assert sorted(named) == sorted(tested), part


def test_ci_installs_the_oldest_python_of_the_sdk() -> None:
    oldest = min(
        int(each.removeprefix(_CLASSIFIER))
        for each in classifiers("sdk")
        if re.fullmatch(rf"{re.escape(_CLASSIFIER)}\d+", each)
    )

    steps = document(".github/workflows/ci.yml")["jobs"]["everything"]["steps"]

    assert any(f"uv python install 3.{oldest}" in step.get("run", "") for step in steps)


def test_every_action_is_pinned_to_a_commit() -> None:
    lines = [
        line.strip().removeprefix("- ")
        for workflow in WORKFLOWS.glob("*.yml")
        for line in workflow.read_text().splitlines()
        if "uses:" in line
    ]

    assert len(lines) > len(list(WORKFLOWS.iterdir()))
    assert [line for line in lines if not _PINNED.match(line)] == []


def test_commit_hooks_run_what_make_check_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    hooks = document(".pre-commit-config.yaml")["repos"][0]["hooks"]

    for hook in hooks:
        command = hook["entry"].replace(".venv/bin/", "$(BIN)/").replace(" --force-exclude", "")
        target = command.removeprefix("make --silent ")
        assert f"\t@{command}" in makefile or f"\n{target}:" in makefile, hook["id"]


def test_the_development_container_runs_what_newcomers_run() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())

    assert container["postCreateCommand"] == "make setup"
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()


def test_editors_and_ruff_agree_on_the_length_of_lines() -> None:
    editors = (ROOT / ".editorconfig").read_text()
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]

    assert f"[*.py]\nindent_size = 4\nmax_line_length = {ruff['line-length']}\n" in editors


def test_npm_packages_of_the_repository_are_kept_up_to_date() -> None:
    updates = document(".github/dependabot.yml")["updates"]
    [folders] = [each["directories"] for each in updates if each["package-ecosystem"] == "npm"]
    locks = [*(ROOT / "typescript").glob("package-lock.json")]
    locks += (ROOT / "tests/support").glob("*/package-lock.json")

    assert sorted(folders) == sorted(f"/{lock.parent.relative_to(ROOT)}" for lock in locks)
