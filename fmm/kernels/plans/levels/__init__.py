"""Kinds of levels, one module each. Importing this package imports every module, and so registers every kind."""

from importlib import import_module
from pkgutil import iter_modules

# In the order of messages: schemes first, since most plans consist of them.
for _name in ("scheme_level", *(module.name for module in iter_modules(__path__))):
    import_module(f"{__name__}.{_name}")
