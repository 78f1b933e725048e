"""All tables on Li, Ranka, Sahni, "Strassen's Matrix Multiplication on GPUs" (2011): printed, computed."""

from __future__ import annotations

from typing import Final

from fmm.perfmodel.papers.li import closed_forms, curves, errors, ratios, texts

TABLES: Final = (*closed_forms.TABLES, *texts.TABLES, *curves.TABLES, *ratios.TABLES, *errors.TABLES)
