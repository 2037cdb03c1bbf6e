"""Everything a person can get wrong, as exceptions that name the cause and the remedy.

The command line prints ``error: CAUSE`` and ``remedy: REMEDY`` and leaves with ``exit_code``; a
library user catches :class:`RankscopeError` or one of its kinds.
"""

from __future__ import annotations


class RankscopeError(Exception):
    """A fault whose cause is known and that the user can mend.

    Parameters
    ----------
    cause : str
        What is wrong, with the names and numbers involved.
    remedy : str, optional
        What to do about it.
    """

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} ({self.remedy})" if self.remedy else self.cause


class UsageError(RankscopeError):
    """An option or argument out of its range, or two that exclude each other."""

    exit_code = 2


class TextError(RankscopeError):
    """A corpus that cannot be read, or has too little text for what was asked."""

    exit_code = 3


class ModelError(RankscopeError):
    """A model that cannot be used; its kinds say why."""

    exit_code = 10


class ModelNotCached(ModelError):
    """Not on this machine, and the network is off or out of reach."""

    exit_code = 11


class AccessRefused(ModelError):
    """Gated or private: the hub refuses without permission."""

    exit_code = 12


class FileDamaged(ModelError):
    """A weights file that is cut short, a pointer text, or not what its checksum says."""

    exit_code = 13


class NotAModelFolder(ModelError):
    """A folder without a model in it, or a name that is neither folder nor hub id."""

    exit_code = 14


class IncompleteWeights(ModelError):
    """A checkpoint that leaves attention or embedding weights at their random start."""

    exit_code = 15


class UnsupportedModel(ModelError):
    """A family whose attention cannot be captured, with the reason."""

    exit_code = 16


class MethodError(RankscopeError):
    """An approximation that cannot be used on this attention, with the reason."""

    exit_code = 17


class CaptureError(RankscopeError):
    """The captured attention is not what the model's configuration promises."""

    exit_code = 20


class MemoryLimit(RankscopeError):
    """The run would need more memory than it may use."""

    exit_code = 21


class SolverFault(RankscopeError):
    """The device's eigenvalue solver gave values that a second solver contradicts."""

    exit_code = 22


class WorkerError(RankscopeError):
    """Worker processes that die again and again, or a cluster that is out of reach."""

    exit_code = 23


class StoreError(RankscopeError):
    """A data file that cannot be read or must not be written."""

    exit_code = 30
