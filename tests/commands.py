"""The command line in tests: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from rankscope import cli

TINY = ["--model", "random:model", "--tokenizer", "hash", "--corpus", "text.txt"]
"""The model and text of the fixture `place`."""

SMALL = [*TINY, "--length", "12", "--windows", "3", "--workers", "1"]


def rankscope(*arguments: str) -> int:
    """Exit status of the command, run in this process."""
    before = sys.argv
    sys.argv = ["rankscope", *arguments]
    try:
        cli.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    finally:
        sys.argv = before
    return 0


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from rankscope.cli import main; main()", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
