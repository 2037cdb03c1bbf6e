"""``python -m figures [NAME …]`` draws the named figures, or all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import figures
from rankscope import terminal


def names() -> list[str]:
    """All figures: the modules of this folder that draw one."""
    return sorted(
        module.name for module in pkgutil.iter_modules(figures.__path__) if module.name[0] != "_"
    )


def main() -> int:
    """Draw what the command line names."""
    wanted = sys.argv[1:] or names()
    if unknown := sorted(set(wanted) - set(names())):
        print(f"no figure {', '.join(unknown)}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    for name in wanted:
        for path in importlib.import_module(f"figures.{name}").draw():
            terminal.note(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
