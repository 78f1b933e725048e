"""Configs: what the tuner found out about devices, written to JSON files, and read by the runtime.

schema.py says what stands in one; locate.py where they are; files.py has those in force; store.py writes;
identity.py tells devices apart, older_keys.py reads what is filed under keys that they once had; certify.py is the rule
by which a plan may replace the vendor's product.
"""

from fmm.config.files import Configs, active_configs, current_settings, default_path
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError, Entry, Tuned
from fmm.config.store import add_entry

__all__ = [
    "ConfigError",
    "Configs",
    "Entry",
    "Identity",
    "Tuned",
    "active_configs",
    "add_entry",
    "current_settings",
    "default_path",
]
