"""``python -m tenantry``."""

from tenantry.cli import main

main(prog_name="tenantry")
