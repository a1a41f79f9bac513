"""Reader of NumPy archives."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from edgesim.core.errors import DataError
from edgesim.files.reading import check_deflated, check_regular, check_room, in_short, reading

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path, wanted: Sequence[str]) -> list[np.ndarray]:
    """Return these arrays of an archive, in this order.

    What its directory and the arrays' headers promise is held against each other before any array is allocated.
    Raises DataError if one is missing, or the archive is damaged or does not hold plain arrays.
    """
    check_regular(path)
    with reading(path, ".npz archive of plain arrays"), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        missing = [key for key in wanted if key not in names]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}; it has {in_short(', '.join(names))}")
        members = [archive.getinfo(f"{key}.npy") for key in wanted]
        check_room(sum(member.file_size for member in members), path)
        return [_array(path, archive, member) for member in members]


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    check_deflated(member.compress_size, member.file_size, f"{path}: {member.filename}")
    with archive.open(member) as file:
        shape, _, dtype = _HEADERS[npy.read_magic(file)](file)
        promised, held = dtype.itemsize * math.prod(shape), member.file_size - file.tell()
        if promised != held and not dtype.hasobject:  # objects, which would be code, are refused below
            raise DataError(f"{path}: {member.filename}: holds {held} bytes, its header {shape} promises {promised}")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)
