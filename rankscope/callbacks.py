"""What long work calls meanwhile."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

Told = Callable[[str], None]
"""Called with a line that a user should read."""
