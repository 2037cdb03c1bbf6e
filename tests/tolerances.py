"""The one table of tolerances: what float rounding explains, by the type that was computed in."""

from __future__ import annotations

RTOL = {"float64": 1e-12, "float32": 1e-5}
ATOL = {"float64": 1e-12, "float32": 1e-6}

GRAM_RATIO = 1e-8
"""Cumulative ratios by the Gram driver against LAPACK's SVD (issue and linalg.RATIO_TOLERANCE)."""
