"""The commands that the development kit adds to ``tenantry`` (entry points of the group
``tenantry.commands``).
"""

from typing import Final

COMMANDS: Final = {
    "demo": ("tenantry_devkit.demo.command", "Run everything on this machine, with example data."),
    "listen": (
        "tenantry_devkit.local.listen",
        "Forward the payment provider's events to this machine.",
    ),
    "trigger": (
        "tenantry_devkit.local.trigger",
        "Send simulated provider events, and show their effect.",
    ),
}
"""Name: the module that holds the command, and its line of help."""
