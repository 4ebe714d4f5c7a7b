"""The commands that the development kit adds to ``tenantry`` (entry points of the group
``tenantry.commands``).
"""

from typing import Final

from tenantry_cli.command_group import Sections

COMMANDS: Final[Sections] = {
    "Test on this machine": {
        "listen": (
            "tenantry_devkit.local.listen",
            "Forward the payment provider's events to this machine.",
        ),
        "trigger": (
            "tenantry_devkit.local.trigger",
            "Send simulated provider events, and show their effect.",
        ),
    },
    "Run a service": {
        "demo": (
            "tenantry_devkit.demo.command",
            "Run everything on this machine, with example data.",
        ),
    },
}
"""By heading of the help, then by name: the module that holds the command, and its line of help."""
