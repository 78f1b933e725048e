"""The commands of fmm-tune, such as `fmm-tune show`; each command has a module of its name."""
