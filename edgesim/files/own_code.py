"""A user's own code: the classes of it that a process has loaded, and the frames of an error that lie in it.

Own code is what is neither edgesim's, nor Python's, nor installed.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

from edgesim.core.errors import EdgesimError
from edgesim.files.loaded_code import is_outside_file
from edgesim.files.reading import in_short, quoted

OWN_CLASSES: dict[str, str] = {}  # "module:Class" -> kind, of all that were loaded since the command began

_PACKAGE = Path(__file__).parents[1]
_BEFORE = 40  # characters that are shown of a name before those that no text has
_FRAMES = "edgesim_frames"  # attribute of an error that comes from another process, which has no traceback


class OwnFrames(NamedTuple):
    """The frames of an error that lie in own code, the outermost first."""

    function: str  # that edgesim called, "module:Class.function"
    place: str  # where it was raised, "NAME.py, line 3"
    text: str  # lines as in a traceback


class Told(NamedTuple):
    """An error as a user is told of it."""

    line: str
    frames: str  # lines of own code, as in a traceback; "": none


def own_frames(error: BaseException) -> OwnFrames | None:
    """Return the own frames of an error, or else of its nearest cause that has any; None: there are none."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [each for each in traceback.walk_tb(cause.__traceback__) if _is_own(each[0].f_code.co_filename)]
        if frames:
            first, (last, line) = frames[0][0], frames[-1]
            name = f"{first.f_globals.get('__name__')}:{first.f_code.co_qualname}".replace(".<locals>", "")
            place = f"{Path(last.f_code.co_filename).name}, line {line}"
            return OwnFrames(name, place, "".join(traceback.StackSummary.extract(iter(frames)).format()))
        if carried := vars(cause).get(_FRAMES):
            return OwnFrames(*carried)
        cause = cause.__cause__
    return None


def carry_frames(error: BaseException, frames: OwnFrames | None) -> None:
    """Let an error that is sent to another process take own frames along."""
    if frames is not None:
        vars(error)[_FRAMES] = tuple(frames)


def told(error: Exception) -> Told | None:
    """Return an error as it is told, without frames of edgesim; None if own code has no part in it."""
    frames = own_frames(error) if OWN_CLASSES else None
    if isinstance(error, EdgesimError):
        raised_there = any(_is_own(f.f_code.co_filename) for f, _ in traceback.walk_tb(error.__traceback__))
        return Told(str(error), "" if frames is None or raised_there else frames.text)
    said = f"{type(error).__name__}: {in_short(error)}"
    if frames is not None:
        return Told(f"{frames.function}() fails: {said}", frames.text)
    if isinstance(error, UnicodeEncodeError):  # of edgesim's own: Python gives such characters to names of files
        wrong = error.object[max(0, error.start - _BEFORE) : error.end]
        return Told(f"{quoted(wrong)}: a name that is not UTF-8 cannot be written there; rename it", "")
    if not OWN_CLASSES:
        return None
    classes = " and ".join(f"{name} ({kind})" for name, kind in OWN_CLASSES.items())
    return Told(f"{said}, in {_place(error)}; check what the functions of {classes} return", "")


def _is_own(file: str) -> bool:
    return not file.startswith("<") and is_outside_file(file)


def _place(error: BaseException) -> str:
    """Return the innermost line of edgesim's that an error passed; told of at its end, it has passed one."""
    lines = ((Path(f.f_code.co_filename), line) for f, line in traceback.walk_tb(error.__traceback__))
    *_, (file, line) = (each for each in lines if each[0].is_relative_to(_PACKAGE))
    return f"{file.relative_to(_PACKAGE.parent)} line {line}"
