"""Functions of the C library."""

from __future__ import annotations

import os

from edgesim.files.c_library import c_function


def test_a_function_that_there_is_and_one_that_there_is_not() -> None:
    assert c_function("getpid")() == os.getpid()
    assert c_function("no_function_has_this_name") is None
