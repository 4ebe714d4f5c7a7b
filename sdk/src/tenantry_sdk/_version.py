"""The version of the SDK: that of the tenantry it comes with."""

__version__ = "0.1.0"
