"""``python -m tenantry``."""

from tenantry_cli.commands import main

main(prog_name="tenantry")
