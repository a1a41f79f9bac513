"""What the project says about itself: licence, citation, changelog, dependencies, and one version."""

from __future__ import annotations

import re
import tomllib
from typing import Literal

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field

from tests.conventions.source_tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMED = {Requirement(text).name.lower(): Requirement(text) for text in PROJECT["dependencies"]}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_licence_is_apache_2() -> None:
    licence = text("LICENSE")
    assert "Apache License\n                           Version 2.0, January 2004" in licence
    assert "Copyright 2026 the edgesim authors" in licence and "[yyyy]" not in licence
    assert len(licence.splitlines()) == 202
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])


class _Entity(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


class _Citation(BaseModel):
    """The part of the schema of Citation File Format 1.2.0 that is used here."""

    model_config = ConfigDict(extra="forbid")
    cff_version: Literal["1.2.0"] = Field(alias="cff-version")
    message: str
    type: Literal["software", "dataset"]
    title: str
    abstract: str
    authors: list[_Entity] = Field(min_length=1)
    license: str
    keywords: list[str] = Field(min_length=1)


def test_the_citation_is_valid() -> None:
    cited = _Citation.model_validate(yaml.safe_load(text("CITATION.cff")))
    assert [author.name for author in cited.authors] == [author["name"] for author in PROJECT["authors"]]
    assert cited.license == PROJECT["license"]
    assert set(cited.keywords) <= set(PROJECT["keywords"])


def test_the_changelog_begins_with_the_version() -> None:
    version = Version(PROJECT["version"])
    heads = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    assert heads[0] == f"{version.base_version}{' (unreleased)' if version.is_devrelease else ''}"
    numbers = [Version(head.split()[0]) for head in heads]
    assert numbers == sorted(set(numbers), reverse=True)
    kinds = re.findall(r"^### (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("name", ["simpy", "torch"])
def test_a_library_whose_internals_are_used_has_an_upper_bound(name: str) -> None:
    assert any(specifier.operator == "<" for specifier in NAMED[name].specifier)
