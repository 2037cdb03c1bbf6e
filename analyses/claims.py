"""Which claims of the source hold, on which model and text, by which rule?

Measures what the claims C1 to C16 need of every model on every text, keeps it by model and text,
and writes the page of claims with its pictures from all that is there. What was measured on the
same weights and tokens in the same way is not measured again, so that an interrupted command goes
on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analyses._claims_kept import measure
from analyses._claims_measure import PARTS
from analyses._claims_page import counts
from analyses._claims_places import FEWEST, WINDOWS, Amounts, places
from analyses._claims_results import gather
from analyses._claims_texts import CLAIMS, chosen
from rankscope import terminal
from rankscope.exceptions import UsageError

FIGURES = Path(__file__).parent.parent / "figures"


def main(argv: Sequence[str]) -> None:
    """Measure what is missing, then write page and pictures."""
    options = _parser().parse_args(argv)
    if options.page_only and options.measure_only:
        raise UsageError("neither measuring nor a page is left to do", "give one of the two")
    claims = chosen(options.claim)
    if not options.page_only:
        needed = {part for claim in claims for part in claim.parts}
        amounts = Amounts(
            options.length, options.windows, options.error_windows, options.loss_windows
        )
        options.data.mkdir(parents=True, exist_ok=True)
        models, corpora = options.model or ["builtin"], options.corpus or ["builtin"]
        for place in places(models, corpora, amounts):
            parts = [part for part in PARTS if part in needed]
            path = measure(place, options.data, parts, options.overwrite)
            terminal.note(f"{path.name}: {', '.join(parts)}")
    if not options.measure_only:
        from figures.claims import write

        results = gather(options.data)
        written = write(results, options.page)
        terminal.note(f"wrote {written[-1]} and {len(written) - 1} pictures")
        for claim, verdicts in counts(results).items():
            if claim in {one.id for one in claims}:
                words = ", ".join(f"{verdict} {number}" for verdict, number in verdicts.items())
                print(f"{claim:4} {CLAIMS[claim].says}: {words or 'not measured'}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analyses claims", description=__doc__)
    parser.add_argument(
        "--model",
        action="append",
        help="repeatable; builtin, minilm, a folder, random:NAME; the built-in model",
    )
    parser.add_argument(
        "--corpus",
        action="append",
        help="repeatable; a file, a folder, wikitext103, imdb, builtin; the built-in text",
    )
    parser.add_argument("--claim", nargs="+", metavar="ID", help="these only, such as C1 C15")
    parser.add_argument("--length", type=int, default=512)
    usual = ", ".join(f"{count} up to {most} heads" for most, count in WINDOWS)
    parser.add_argument(
        "--windows",
        type=int,
        help=f"for spectra and attention mass; by default {usual}, beyond these {FEWEST}",
    )
    parser.add_argument(
        "--error-windows",
        type=int,
        help="for output errors; by default the same, and half of it for random:NAME",
    )
    parser.add_argument(
        "--loss-windows", type=int, help="for the model itself; by default as for output errors"
    )
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--measure-only", action="store_true", help="write no page")
    parser.add_argument(
        "--overwrite", action="store_true", help="measure again what has other settings"
    )
    parser.add_argument("--data", type=Path, default=FIGURES / "data", help="folder of results")
    parser.add_argument("--page", type=Path, default=FIGURES / "claims.md")
    return parser
