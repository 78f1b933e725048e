"""Kinds of levels, one module for each kind. The import of this package registers every kind."""

from importlib import import_module
from pkgutil import iter_modules

# Messages list kinds of levels in the order of these imports. Schemes come first, since most plans consist of schemes.
for _name in ("scheme_level", *(module.name for module in iter_modules(__path__))):
    import_module(f"{__name__}.{_name}")
