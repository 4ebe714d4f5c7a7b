"""Looks through what is installed with the service: ``make audit``.

Licences, by what the installed packages say of themselves (PEP 639), against the list below; known
weaknesses of the pinned versions, by pip-audit and npm, which ask their registries. Exits with 1
for a fault, and with 3 where there is none but a registry could not be asked, which is said aloud:
then nothing is known about weaknesses.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement

HERE: Final = Path(__file__).parent
_LOCKED: Final = ("runtime", "demo", "build", "image", "dev")
_NPM: Final = HERE.parent / "tests" / "support"
_PIP_AUDIT: Final = Path(sys.prefix, "tools", "bin", "pip-audit")
_SECONDS: Final = 300
_FAULTY, _NOT_ASKED = 1, 3

ALLOWED: Final = frozenset(
    {
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "LGPL-3.0-only",  # psycopg: used as it is, and anybody may put another one in its place
        "MIT",
        "MIT-0",
        "MPL-2.0",  # certifi: a list of certificates, used as it is
        "PSF-2.0",
    }
)
"""By SPDX identifier: licences that let the service be used, changed and passed on under its
own.
"""
_OLD_NAMES: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""What classifiers call them, and old metadata."""


class Answer(NamedTuple):
    """What a registry said: weaknesses, a line each; ``asked`` is false where it said nothing of
    use.
    """

    asked: bool
    weaknesses: list[str]


def pins(name: str) -> list[str]:
    """The entries of a lock file, each with its hashes."""
    text = (HERE / f"{name}.txt").read_text("utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def installed(name: str) -> Iterator[metadata.PackageMetadata]:
    """What the packages of a lock file say of themselves. Raises `PackageNotFoundError` for one
    that is missing.
    """
    for pin in pins(name):
        requirement = Requirement(pin.partition(" --hash")[0])
        if requirement.marker is None or requirement.marker.evaluate():
            yield metadata.metadata(requirement.name)


def licence(package: metadata.PackageMetadata) -> str:
    """A package's licence as an SPDX expression; empty where it names none that is known here."""
    expression = _said(package, "License-Expression")
    if expression:
        return expression
    classifiers = [str(each) for each in package.get_all("Classifier") or ()]
    named = [
        each.rpartition(" :: ")[2]
        for each in classifiers
        if each.startswith("License :: OSI Approved :: ")
    ]
    found = [_OLD_NAMES[name] for name in named if name in _OLD_NAMES]
    if named:
        return " OR ".join(found) if len(found) == len(named) else ""
    said = _said(package, "License")
    return _OLD_NAMES.get(said, said)


def _said(package: metadata.PackageMetadata, field: str) -> str:
    """The first line of a field; empty where there is none."""
    return next((str(text).partition("\n")[0].strip() for text in package.get_all(field) or ()), "")


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression lets the service be used as `ALLOWED` does; one with brackets
    needs a person.
    """
    return any(
        all(part in ALLOWED for part in either.split(" AND "))
        for either in expression.split(" OR ")
    )


def licence_faults() -> list[str]:
    """What is installed for running the service under a licence that is not allowed, or not
    known.
    """
    packages = [(package["Name"], licence(package)) for package in installed("runtime")]
    return [
        f"{name}: {said or 'no licence that is known'}"
        for name, said in packages
        if not is_allowed(said)
    ]


def python_weaknesses() -> Answer:
    """What pip-audit finds out about the pinned versions."""
    asked, weaknesses = True, list[str]()
    for name in _LOCKED:
        done = _run(
            [
                str(_PIP_AUDIT),
                "-f",
                "json",
                "--no-deps",
                "--disable-pip",
                "-r",
                str(HERE / f"{name}.txt"),
            ]
        )
        try:
            packages = json.loads(done)["dependencies"]
        except (ValueError, KeyError):
            return Answer(asked=False, weaknesses=weaknesses)
        # it passes over what it could not ask about, and calls that a success
        asked = asked and not any("skip_reason" in package for package in packages)
        weaknesses += [
            f"{package['name']} {package['version']}: {each['id']}"
            for package in packages
            for each in package.get("vulns", ())
        ]
    return Answer(asked, sorted(set(weaknesses)))


def npm_weaknesses() -> Answer:
    """What npm finds out about what only tests use."""
    weaknesses: list[str] = []
    for lock in sorted(_NPM.glob("*/package-lock.json")):
        said = _run(["npm", "audit", "--json", "--package-lock-only", "--prefix", str(lock.parent)])
        try:
            found = json.loads(said)["vulnerabilities"]
        except (ValueError, KeyError):
            return Answer(asked=False, weaknesses=weaknesses)
        weaknesses += [
            f"{lock.parent.name}: {name} ({each['severity']})" for name, each in found.items()
        ]
    return Answer(asked=True, weaknesses=weaknesses)


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def main() -> None:
    """Look, say, and exit."""
    faults = licence_faults()
    _say(
        f"licences: {len(list(installed('runtime')))} packages of the service",
        faults,
        "all are allowed",
    )
    asked = True
    for what, answer in (
        ("weaknesses, Python", python_weaknesses()),
        ("weaknesses, npm", npm_weaknesses()),
    ):
        _say(
            what,
            answer.weaknesses,
            "none is known" if answer.asked else "COULD NOT BE ASKED: nothing is known",
        )
        faults += answer.weaknesses
        asked = asked and answer.asked
    sys.exit(_FAULTY if faults else 0 if asked else _NOT_ASKED)


def _say(what: str, faults: list[str], otherwise: str) -> None:
    sys.stdout.write(
        f"{what}: {otherwise if not faults else ''}\n" + "".join(f"  {fault}\n" for fault in faults)
    )


def hashes(pin: str) -> list[str]:
    """The hashes of an entry of a lock file."""
    return re.findall(r"--hash=sha256:([0-9a-f]{64})(?:\s|$)", pin)


if __name__ == "__main__":
    main()
