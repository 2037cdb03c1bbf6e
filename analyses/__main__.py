"""``python -m analyses NAME [OPTIONS]`` runs one analysis; without a name it lists them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import analyses
from rankscope import terminal
from rankscope.exceptions import RankscopeError


def names() -> list[str]:
    """All analyses: the modules of this folder that answer a question."""
    return sorted(
        module.name for module in pkgutil.iter_modules(analyses.__path__) if module.name[0] != "_"
    )


def main() -> int:
    """Run the analysis that the command line names."""
    if len(sys.argv) < 2 or sys.argv[1] not in names():
        for name in names():
            module = importlib.import_module(f"analyses.{name}")
            print(f"{name:20} {(module.__doc__ or '').splitlines()[0]}")
        return 0 if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help") else 2
    try:
        importlib.import_module(f"analyses.{sys.argv[1]}").main(sys.argv[2:])
    except RankscopeError as error:
        terminal.fail(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
