"""Run one target under atheris: ``python -m bench.fuzz.child NAME`` and libFuzzer's own
arguments.
"""

import logging
import sys

import atheris

INSTRUMENTED = [
    "tenantry",
    "tenantry_cli",
    "tenantry_sdk",
    "joserfc",
    "authlib",
    "uvicorn",
]


def main() -> None:
    """Run until libFuzzer ends or finds something."""
    name, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED):
        from bench.fuzz.catalog import target  # noqa: PLC0415  # atheris instruments imports

        one = target(name)
    logging.disable()
    for seed in one.seeds():
        one.check(seed)
    atheris.Setup([sys.argv[0], *arguments], one.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
