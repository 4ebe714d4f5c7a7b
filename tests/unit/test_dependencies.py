"""What is installed with the service: pinned to the byte, and under licences that are allowed."""

from email.message import Message
from importlib import metadata
from typing import Any, cast

from requirements import audit
from tests.support.cases import cases


@cases("name", sorted(path.stem for path in audit.HERE.glob("*.txt")))
def test_everything_is_pinned_with_hashes(name: str) -> None:
    pins = audit.pins(name)
    assert pins
    assert [pin for pin in pins if "==" not in pin or not audit.hashes(pin)] == []


def test_every_license_of_the_dependencies_is_allowed() -> None:
    assert audit.licence_faults() == []


def package(**said: str | list[str]) -> metadata.PackageMetadata:
    message = Message()
    for name, value in said.items():
        for each in [value] if isinstance(value, str) else value:
            message[name.replace("_", "-")] = each
    return cast("metadata.PackageMetadata", cast("Any", message))


@cases(
    "said",
    [
        {},
        {"License": "Proprietary"},
        {"License_Expression": "AGPL-3.0-or-later"},
        {"License_Expression": "MIT AND GPL-2.0-only"},
        {"License_Expression": "(MIT OR BSD-3-Clause) AND X"},
        {"Classifier": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"},
        {
            "Classifier": [
                "License :: OSI Approved :: MIT License",
                "License :: OSI Approved :: Of our own",
            ]
        },
        {"Classifier": "License :: Other/Proprietary License", "License": ""},
    ],
)
def test_unreviewed_license_is_not_allowed(said: dict[str, str | list[str]]) -> None:
    assert not audit.is_allowed(audit.licence(package(**said)))


@cases(
    "said",
    [
        {"License_Expression": "MIT"},
        {"License_Expression": "GPL-2.0-only OR Apache-2.0 AND MIT"},
        {"License": "BSD-3-Clause"},
        {"License": "MIT License\n\nCopyright"},
        {"Classifier": "License :: OSI Approved :: BSD License", "License": "a whole text"},
    ],
)
def test_licence_is_found_where_a_package_names_it(said: dict[str, str | list[str]]) -> None:
    assert audit.is_allowed(audit.licence(package(**said)))
