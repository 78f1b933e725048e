"""Chips from the datasheets, for tests of the plans chosen on them."""

from fmm.hardware.datasheets import datasheet_of
from fmm.perfmodel.papers.huang_blocks import datasheet_chip

A100, B200, H200, V100 = (datasheet_chip(datasheet_of(name)) for name in ("A100", "B200", "H200", "V100"))
