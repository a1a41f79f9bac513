"""A file takes the place of an older one only when it is all there."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgesim.files.atomic import whole_file


def test_a_file_that_is_broken_off_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), whole_file(path) as growing:
        growing.write_text("ne")
        raise OSError("the disk is full")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("trace.json", "old")]
    with whole_file(path) as growing:
        growing.write_text("new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("trace.json", "new")]
