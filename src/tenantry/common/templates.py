"""Templates of pages."""

from jinja2 import BaseLoader, Environment, StrictUndefined


def page_templates(loader: BaseLoader) -> Environment:
    """The templates that ``loader`` finds: all that is put into them is escaped, and what is not there is an error."""
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
