"""docs/howto/study.md names every key and column of a study, and says which file is which."""

from __future__ import annotations

import re
from pathlib import Path

from edgesim.reports.energy import ACCOUNTS
from edgesim.studies.column import _ALLOWED, parse_column
from edgesim.studies.study import Study, load_study
from tests.calling import call
from tests.docs.pages import ROOT, Reader, blocks_of

PATH = ROOT / "docs" / "howto" / "study.md"
PAGE = PATH.read_text(encoding="utf-8")


def shown(kind: str) -> set[str]:
    """Return the words in code in the first column of the table whose head starts so."""
    table = PAGE.partition(f"| {kind} |")[2].partition("\n\n")[0]
    return {word for line in table.splitlines()[2:] for word in re.findall(r"`([^`]+)`", line.split(" | ")[0])}


def test_its_study_runs(here: Path) -> None:
    """Here one cell; all of them with the blocks of all pages."""
    reader = Reader(here)
    for block in blocks_of(PATH):
        if block.title:
            reader.do(block)
    assert len(load_study(here / "my_study.toml").cells("full")) == 6
    says = "error: my_study.toml: is a study, not a scenario; run it with: edgesim study run my_study.toml\n"
    assert call("run", "my_study.toml") == (2, "", says)
    code, _, err = call("study", "run", "my_study.toml", "--only", "method=fedprox,seed=1")
    assert code == 0, err
    code, out, err = call("study", "table", "my_study.toml", "--json")
    assert code == 0, err
    assert '"column": "traffic_bytes"' in out


def test_it_names_every_key_and_column() -> None:
    assert shown("key") == set(Study.model_fields)
    columns = shown("column")
    for column in columns - {"metric.NAME", "mean_metric.NAME", "TABLE.COLUMN", "@0.8", "metric.NAME[0-9]"}:
        parse_column(column)
    words = set(re.findall(r"[a-z]\w*", " ".join(columns))) | {"accuracy_last_K"}
    allowed = _ALLOWED.replace("energy_ACCOUNT_j", " ".join(f"energy_{account}_j" for account in ACCOUNTS[1:]))
    assert set(re.findall(r"\b[a-z]+_\w+", allowed)) <= words | {"sim_time_s@0.75"}
