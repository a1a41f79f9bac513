"""A user's own code: the classes of it that a process has loaded, and its frames in the traceback of an error.

Own code belongs neither to edgesim, nor to Python, nor to an installed package.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

from edgesim.core.errors import EdgesimError
from edgesim.files.loaded_code import is_outside_file
from edgesim.files.reading import in_short, quoted

OWN_CLASSES: dict[str, str] = {}  # "module:Class" -> kind, of all classes loaded since the command began

_PACKAGE = Path(__file__).parents[1]
_BEFORE = 40  # characters of a name that are shown before an invalid one
_FRAMES = "edgesim_frames"  # attribute of an error from another process, which has no traceback


class OwnFrames(NamedTuple):
    """The frames of an error that lie in own code, the outermost first."""

    function: str  # the function that edgesim called, "module:Class.function"
    place: str  # the line that raised the error, "NAME.py, line 3"
    text: str  # lines as in a traceback


class Told(NamedTuple):
    """An error as it is shown to a user."""

    line: str
    frames: str  # lines of own code, as in a traceback; "": none


def own_frames(error: BaseException) -> OwnFrames | None:
    """Return the own frames of an error, or of its nearest cause that has any; None: there are none."""
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
    """Attach own frames to an error that will be sent to another process."""
    if frames is not None:
        vars(error)[_FRAMES] = tuple(frames)


def told(error: Exception) -> Told | None:
    """Return an error as it is shown, without frames of edgesim; None if own code has no part in it."""
    frames = own_frames(error) if OWN_CLASSES else None
    if isinstance(error, EdgesimError):
        raised_there = any(_is_own(f.f_code.co_filename) for f, _ in traceback.walk_tb(error.__traceback__))
        return Told(str(error), "" if frames is None or raised_there else frames.text)
    said = f"{type(error).__name__}: {in_short(error)}"
    if frames is not None:
        return Told(f"{frames.function}() fails: {said}", frames.text)
    if isinstance(error, UnicodeEncodeError):  # Python uses such characters for bytes of file names
        wrong = error.object[max(0, error.start - _BEFORE) : error.end]
        return Told(f"{quoted(wrong)}: a name that is not UTF-8 cannot be written there; rename it", "")
    if not OWN_CLASSES:
        return None
    classes = " and ".join(f"{name} ({kind})" for name, kind in OWN_CLASSES.items())
    # the innermost line of edgesim: an error shown at the end of a command has passed at least one
    lines = ((Path(f.f_code.co_filename), line) for f, line in traceback.walk_tb(error.__traceback__))
    *_, (file, line) = (each for each in lines if each[0].is_relative_to(_PACKAGE))
    place = f"{file.relative_to(_PACKAGE.parent)} line {line}"
    return Told(f"{said}, in {place}; check what the functions of {classes} return", "")


def _is_own(file: str) -> bool:
    return not file.startswith("<") and is_outside_file(file)
