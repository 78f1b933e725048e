"""Kinds of levels, one module for each kind. Importing this package registers every kind of level."""

from importlib import import_module
from pkgutil import iter_modules

# Messages list the kinds of levels in the order of these imports. Schemes come first, since most levels are schemes.
for _name in ("scheme_level", *(module.name for module in iter_modules(__path__))):
    import_module(f"{__name__}.{_name}")
