"""Every key of a scenario that names a file, and what is no regular file in its place: refused before it is opened."""

import os
from pathlib import Path

import pytest

from tests.calling import call

LOOKED_FOR = {
    "extends": ['{here}/top.toml: extends = "{file}"'],
    "fleet": ["fleet={file}.csv"],
    "profile": ["fleet.0={{ profile = '{file}.toml' }}"],
    "availability": ["availability={{name='trace', file='{file}'}}"],
    "availability parquet": ["availability={{name='trace', file='{file}.parquet'}}"],
    "rates": ["network={{name='trace', file='{file}'}}"],
    "rates parquet": ["network={{name='trace', file='{file}.parquet'}}"],
    "speeds": ["slowdown={{name='replay', file='{file}'}}"],
    "topology": ["network={{name='shared', up=1e6, down=1e6}}", "topology={{name='file', file='{file}'}}"],
    "peers": ["method=dfedavg", "selection=all", "peers={{name='file', file='{file}'}}"],
    "npz": ["data={{name='npz', file='{file}'}}"],
    "parquet": ["data={{name='parquet', train='{file}', test='{file}'}}"],
    "weights": ["model.init_from={file}"],
}


@pytest.mark.parametrize("overrides", LOOKED_FOR.values(), ids=LOOKED_FOR)
@pytest.mark.parametrize("what", ["a named pipe", "a folder", "a device"])
def test_what_is_no_regular_file_is_refused(here: Path, overrides: list[str], what: str) -> None:
    """A pipe that nobody writes to would be waited for without end, and zeros come without end."""
    scenario, place = here / "scenario.toml", here / "thing"
    for file in (place, *(place.with_name(f"thing{ending}") for ending in (".csv", ".toml", ".parquet"))):
        if what == "a named pipe":
            os.mkfifo(file)
        elif what == "a folder":
            file.mkdir()
        else:
            file.symlink_to("/dev/zero")
    given = [each.format(file=place, here=here) for each in overrides]
    if given[0].startswith(f"{here}/top.toml"):
        scenario, text = here / "top.toml", given.pop().partition(": ")[2]
        scenario.write_text(text)
    code, out, err = call("validate", scenario, *(word for each in given for word in ("--set", each)))
    assert (code, out, err.count("\n")) == (2, "", 1)
    named = "/dev/zero" if what == "a device" else f"{here.resolve()}/thing"  # links are followed
    assert named in err
    assert err.endswith(f": cannot be read: is {what}, a regular file is needed\n")


@pytest.mark.parametrize("what", ["a named pipe", "a device"])
@pytest.mark.parametrize("words", [["validate"], ["run"], ["study", "run"], ["study", "table"], ["check"]])
def test_files_on_the_command_line_are_regular(here: Path, words: list[str], what: str) -> None:
    file = here / "golden.toml"
    if what == "a device":
        file.symlink_to("/dev/zero")
    else:
        os.mkfifo(file)
    code, out, err = call(*words, "." if words == ["check"] else file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "golden.toml: cannot be read: is " in err
