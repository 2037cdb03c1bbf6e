"""rankscope: spectral analysis of attention."""

__version__ = "0.1.0"
