"""Example workflows for CI services are valid and name commands that exist; the table of exit codes is true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgesim.cli.app import command_line
from edgesim.cli.main import _SIGPIPE_EXIT, _UsageError
from edgesim.execution.interrupts import INTERRUPTED
from tests.calling import call
from tests.docs.pages import ROOT

EXAMPLES = {path.name: path for path in (ROOT / "docs" / "examples").glob("*.yml")}
PAGE = (ROOT / "docs" / "howto" / "ci.md").read_text(encoding="utf-8")


def loaded(name: str) -> dict[Any, Any]:
    found = yaml.safe_load(EXAMPLES[name].read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def scripts() -> Iterator[tuple[str, str]]:
    """Yield each line that a workflow types, with the name of its file."""
    for job in loaded("github-actions.yml")["jobs"].values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            yield from (("github-actions.yml", line) for line in step.get("run", "").splitlines())
    gitlab = loaded("gitlab-ci.yml")
    for job in [gitlab["default"], *jobs_of(gitlab).values()]:
        for line in [*job.get("before_script", []), *job.get("script", [])]:
            yield "gitlab-ci.yml", line


def jobs_of(gitlab: dict[str, Any]) -> dict[str, Any]:
    """Return the jobs of a GitLab file: all that is none of its words of its own."""
    return {name: job for name, job in gitlab.items() if name not in {"stages", "variables", "default", "include"}}


COMMANDS = [(name, line) for name, line in scripts() if line.startswith("edgesim ")]


def test_both_services_have_an_example_that_the_page_links() -> None:
    assert set(EXAMPLES) == {"github-actions.yml", "gitlab-ci.yml"}
    assert {name for name, _ in COMMANDS} == set(EXAMPLES)
    assert all(f"](../examples/{name})" in PAGE for name in EXAMPLES)


@pytest.mark.parametrize(("name", "line"), COMMANDS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(COMMANDS)])
def test_their_commands_can_be_typed(name: str, line: str) -> None:
    """The command line parses each as the shell would hand it over; a word that is unknown is an error of usage."""
    command: Any = command_line()
    words = shlex.split(line, comments=True)[1:]
    while commands := getattr(command, "commands", None):
        command, words = commands[words[0]], words[1:]
    command.make_context(line, list(words))
    with pytest.raises(_UsageError):
        command.make_context(line, [*words, "--no-such-option"])


def test_workflows_have_what_their_service_asks_for() -> None:
    """Keys of the services' references: triggers and runners of GitHub, stages and reports of GitLab."""
    github = loaded("github-actions.yml")
    assert {"name", "jobs", "permissions"} <= set(github) and True in github  # YAML 1.1 reads `on` as true
    for job in github["jobs"].values():
        assert job["runs-on"] and all(
            re.fullmatch(r"[\w-]+/[\w-]+@v\d+", s["uses"]) for s in job["steps"] if "uses" in s
        )
    gitlab = loaded("gitlab-ci.yml")
    for job in jobs_of(gitlab).values():
        assert job["stage"] in gitlab["stages"] and job["script"]
    assert gitlab["golden-tables"]["artifacts"]["reports"] == {"junit": "check.xml"}
    assert gitlab["golden-tables"]["artifacts"]["when"] == "always"


def test_files_that_a_workflow_hands_on_are_those_that_its_command_writes() -> None:
    for name, line in COMMANDS:
        words = shlex.split(line)
        written = {words[words.index(option) + 1] for option in ("--junit", "--json", "--markdown")}
        text = EXAMPLES[name].read_text(encoding="utf-8")
        assert all(re.search(rf"^.*{re.escape(file)}.*$", text.replace(line, ""), re.MULTILINE) for file in written)


# --- exit codes -------------------------------------------------------------------------------------------------


def codes() -> dict[str, str]:
    """Return what the page says of each exit code."""
    rows = re.findall(r"^\| (\S.*?) \| (.*?) \|$", PAGE.partition("## Exit codes")[2], re.MULTILINE)
    return {code.strip("`"): said for code, said in rows if code[:1] in "`"}


def test_the_table_has_every_exit_code() -> None:
    assert set(codes()) == {"0", "1", "2", str(INTERRUPTED), "129, 143", str(_SIGPIPE_EXIT)}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("list", "methods"), 0),
        (("diff", "run", "run"), 0),
        (("diff", "run", "other"), 1),
        (("validate", "nothing.toml"), 2),
        (("no-such-command",), 2),
        (("check", "nowhere"), 2),
        (("watch", "run"), 0),
    ],
)
def test_exit_codes_are_those_of_the_table(here: Path, words: tuple[str, ...], code: int) -> None:
    for name, seed in {"run": 1, "other": 2}.items():
        made = call("run", "scenario.toml", "--set", f"seed={seed}", "--set", "backend=null", "--quiet", "--out", name)
        assert made.code == 0
    assert call(*words).code == code and str(code) in codes()
