"""Descriptions and examples of fields, for the OpenAPI document."""

from msgspec import Meta

_NONE = object()


def doc(description: str | None = None, example: object = _NONE) -> Meta:
    """Describe a field of a struct: ``Annotated[str, doc("The key's id.", "key_0197...")]``."""
    return Meta(description=description, examples=None if example is _NONE else [example])
