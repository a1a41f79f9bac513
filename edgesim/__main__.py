"""Starts the command line: `python -m edgesim`."""

from __future__ import annotations

from edgesim.cli.main import main

if __name__ == "__main__":
    main()
