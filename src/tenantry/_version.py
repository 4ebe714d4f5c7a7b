"""The version of all three distributions: those of the SDK and the development kit are links to
this file.
"""

__version__ = "0.1.0"
