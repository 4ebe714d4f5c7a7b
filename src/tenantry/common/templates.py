"""HTML templates."""

from jinja2 import BaseLoader, Environment, StrictUndefined


def page_templates(loader: BaseLoader) -> Environment:
    """Make an environment that escapes all values and raises for undefined ones."""
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
