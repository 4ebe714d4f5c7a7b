"""The configuration that the guide to the command line shows.

`tests/system/cli` runs its commands.
"""

import tomllib
from pathlib import Path
from typing import Final

import msgspec

from tenantry_cli.client_configuration import Config
from tests.sdk.test_sdk_readme import blocks

GUIDE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md"


def test_configuration_of_the_guide_is_valid() -> None:
    [text] = blocks(GUIDE, "toml")
    config = msgspec.convert(tomllib.loads(text), Config)
    assert config.profiles["work"].keyring
    assert config.profiles["staging"].api_key_file
