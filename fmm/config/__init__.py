"""Configs: JSON files with the tunings of devices, written by the tuner and read by the runtime.

environment.py reads the environment variables. files.py finds and reads the config files. schema.py defines the fields
of a config, and reader.py reads and checks JSON. store.py writes configs. identity.py names devices. certification.py
decides whether a plan is certified.
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
