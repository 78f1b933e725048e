"""Levels, one kind a file: every file of this folder is imported, and registers what it has."""

from importlib import import_module
from pkgutil import iter_modules

# In the order in which messages list them: what most plans are made of first.
for _name in ("scheme_text", *(module.name for module in iter_modules(__path__))):
    import_module(f"{__name__}.{_name}")
