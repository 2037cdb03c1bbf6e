"""Controls: what chance, the text's words or padding alone would make of a spectrum.

A cumulative ratio of 0.9 says little by itself: a matrix whose rows are merely flat has it too.
Each control keeps some of what was measured and destroys the rest; what a spectrum has beyond its
control is due to what the control destroys.

==============  ================================================  ==================================
control         kept                                              destroyed
==============  ================================================  ==================================
``random``      architecture, tokens, positions                   everything learned
``rows``        every row's values: sum, entropy, norm, mask      which columns they stand in
``gaussian``    every row's sum, entropy and mask                 values and columns
``tokens``      the model, the words of the window                their order
``padded-L``    the model, the text                               the size: L tokens in n × n
``mean-M``      the mean matrix over M windows                    what differs between windows
==============  ================================================  ==================================

- ``random`` is a model, not a function: ``load_model("random:NAME")`` has the architecture of NAME
  with weights drawn anew, and is measured like any other.
- ``rows`` and ``gaussian`` turn one captured P into another matrix: :func:`shuffled_rows`,
  :func:`gaussian_rows`, or :func:`control_matrix` with a seed of its own for every window, layer
  and head.
- ``tokens`` is a window of text, :func:`shuffled_tokens`, for the model to read.
- ``padded-L`` is :func:`padded_attention`, of a window or of the first tokens of one
  (:func:`shortened`).
- ``mean-M`` is the spectrum of the mean P (:func:`mean_matrix`) of a group of M windows that follow
  each other, to be set against the mean of their spectra: a sample of such a run is a group. The
  groups have one length, and what is left of the windows, fewer than M, is in none.

Everything drawn depends on a seed and on the place it is drawn for, and on nothing else: not on
batches, on workers or on the device.
"""

from __future__ import annotations

from rankscope.controls.matrices import (
    MATRIX_CONTROLS,
    control_matrix,
    gaussian_rows,
    mean_matrix,
    shuffled_rows,
    support,
)
from rankscope.controls.texts import padded_attention, shortened, shuffled_tokens

__all__ = [
    "MATRIX_CONTROLS",
    "control_matrix",
    "gaussian_rows",
    "mean_matrix",
    "padded_attention",
    "shortened",
    "shuffled_rows",
    "shuffled_tokens",
    "support",
]
