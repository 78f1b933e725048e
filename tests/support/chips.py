"""Chips from the datasheets, for tests of what is chosen on them."""

from fmm.hardware.datasheets import device
from fmm.perfmodel.papers.huang_blocks import datasheet_chip

H200 = datasheet_chip(device("H200"))
