"""One question a file: ``python -m analyses NAME`` answers it, into ``analyses/out/NAME.nc``."""
