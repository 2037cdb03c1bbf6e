"""Approximations of attention: one family a file, one protocol, one table of methods.

A method is a value with parameters. :func:`method` makes one from the text of ``--method``;
``matrix(attention)`` is the n × n matrix that it implies, ``apply(attention)`` the output, computed
in its own cheap form.
"""

from __future__ import annotations

from rankscope.approximations.base import Approximation, Cost, Shape, parse
from rankscope.approximations.bigbird import BigBird, RandomBand, RandomKeys
from rankscope.approximations.combined import BandPlusLowRank, Scatterbrain
from rankscope.approximations.kernel import CosFormer, LinearTransformer, Performer
from rankscope.approximations.linformer import Linformer
from rankscope.approximations.longformer import Global, Longformer
from rankscope.approximations.lsh import Lsh
from rankscope.approximations.nystrom import Nystrom
from rankscope.approximations.projected import Projected
from rankscope.approximations.ranks import Ranks, read_ranks
from rankscope.approximations.sparse import Band, Dilated, Top
from rankscope.approximations.truncated import BestOutput, Full, MeanRow, Truncated, Uniform

__all__ = ["METHODS", "Approximation", "Cost", "Ranks", "Shape", "method", "read_ranks"]

METHODS: dict[str, type[Approximation]] = {
    one.name: one
    for one in (
        Full,
        Uniform,
        MeanRow,
        Truncated,
        BestOutput,
        Linformer,
        Projected,
        Performer,
        LinearTransformer,
        CosFormer,
        Nystrom,
        Lsh,
        Band,
        Dilated,
        Global,
        Longformer,
        RandomKeys,
        RandomBand,
        BigBird,
        Top,
        BandPlusLowRank,
        Scatterbrain,
    )
}
"""Every method by its name."""


def method(text: str) -> Approximation:
    """A method from its text.

    Parameters
    ----------
    text : str
        ``NAME`` or ``NAME:PARAMETER=VALUE,…``.

    Returns
    -------
    Approximation

    Raises
    ------
    UsageError
        For an unknown method or parameter, a value of the wrong kind, or one that is missing.

    Examples
    --------
    >>> method("truncated:k=128")
    Truncated(k=128, ranks=None, rows='raw')
    >>> str(method("truncated:k=128,rows=clipped"))
    'truncated:k=128,rows=clipped'
    """
    return parse(text, METHODS)
