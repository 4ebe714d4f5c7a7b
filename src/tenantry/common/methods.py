"""The methods of HTTP that are told by name; of any other, metrics, logs and traces say only that it is another."""

from typing import Final

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
