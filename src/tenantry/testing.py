"""Deprecated name of `tenantry_devkit.testing`, which pip installs with ``tenantry[testing]``."""

import importlib
import sys
import warnings

warnings.warn(
    "tenantry.testing has moved: use tenantry_devkit.testing", DeprecationWarning, stacklevel=2
)
sys.modules[__name__] = importlib.import_module("tenantry_devkit.testing")
