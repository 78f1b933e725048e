"""Kinds of levels, one module for each kind. Importing this package registers every kind."""

from importlib import import_module
from pkgutil import iter_modules

# The order of these imports is the order of kinds in messages. Schemes come first, since most plans consist of them.
for _name in ("scheme_level", *(module.name for module in iter_modules(__path__))):
    import_module(f"{__name__}.{_name}")
