"""Deprecated name of `tenantry_devkit.simulator`, which pip installs with ``tenantry[demo]``."""

import importlib
import sys
import warnings

warnings.warn(
    "tenantry.simulator has moved: use tenantry_devkit.simulator", DeprecationWarning, stacklevel=2
)
sys.modules[__name__] = importlib.import_module("tenantry_devkit.simulator")
