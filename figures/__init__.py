"""One figure a file: ``python -m figures NAME`` draws committed data as NAME.png and NAME.svg."""
