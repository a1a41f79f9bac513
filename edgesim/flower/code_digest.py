"""Digest of all that decides the answers of a Flower app."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgesim.files.code_identity import digest_of_files, numeric_environment
from edgesim.flower.compat import VERSION

_APART = {"__pycache__", "site-packages", "node_modules"}


def digest_of_app(folder: Path, run_config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an app's Python files and pyproject.toml, its configuration, and versions of libraries."""
    files = [folder / "pyproject.toml"]
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).parts
        if not any(part.startswith(".") or part in _APART for part in parts):
            files.append(file)
    facts = {
        "files": digest_of_files(files, folder),
        "flwr": VERSION,
        "config": dict(run_config),
        "environment": numeric_environment(),
    }
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
