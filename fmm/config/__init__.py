"""Configs: the tuner's findings about devices, in JSON files that the runtime reads.

environment.py reads the environment variables, files.py finds and reads the files in force, schema.py has the fields of
a config, reader.py the generic reader of JSON, store.py writes, identity.py names devices, and certification.py has the
rule by which a plan may replace the vendor's product.
"""

from fmm.config.files import Configs, active_configs, current_settings, default_path
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError, Entry, Tuning
from fmm.config.store import add_entry

__all__ = [
    "ConfigError",
    "Configs",
    "Entry",
    "Identity",
    "Tuning",
    "active_configs",
    "add_entry",
    "current_settings",
    "default_path",
]
