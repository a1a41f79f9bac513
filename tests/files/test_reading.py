"""What reads files of users: bounds that are asked before anything is opened or allocated, and faults in one line."""

import gzip
import os
import socket

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edgesim.core.errors import ConfigError, DataError
from edgesim.files.reading import (
    check_deflated,
    check_regular,
    check_room,
    csv_rows,
    in_short,
    quoted,
    read_text,
    reading,
)
from edgesim.files.tables import column_names, read_columns


def test_only_regular_files_are_opened(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(file)
    assert check_regular(file) == check_regular(tmp_path / "link") == 5
    os.mkfifo(tmp_path / "pipe")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "socket"))
    bound.close()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, what in {
        "": "is a folder",
        "pipe": "is a named pipe",
        "socket": "is a socket",
        "/dev/zero": "is a device",
        "none": "No such file",
        "loop": "Too many levels of symbolic links",
        "nul\0": "embedded null",
        "n" * 300: "File name too long",
    }.items():
        with pytest.raises(ConfigError, match=rf"cannot be read: {what}"):
            check_regular(tmp_path / name, ConfigError)


def test_room_is_asked_for_before_it_is_taken():
    check_room(2**20, "a.bin")
    with pytest.raises(DataError, match=r"^a\.bin: needs 1056\.0 GiB of memory, this machine has "):
        check_room(2**40 + 2**35, "a.bin")
    with pytest.raises(ConfigError, match=r"^a\.bin: damaged: 10 bytes cannot hold the 10321 that they promise$"):
        check_deflated(10, 10321, "a.bin", ConfigError)
    zeros = 10**7
    check_deflated(len(gzip.compress(bytes(zeros))), zeros, "a.bin")  # nothing packs better


def test_a_text_is_utf_8_and_bounded(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfgr\xc3\xbcn\r\n")
    assert read_text(file) == "grün\r\n"
    with pytest.raises(DataError, match=r"a\.txt: has 10 bytes, at most 9 are read$"):
        read_text(file, most_bytes=9)
    file.write_bytes("grün".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"a\.txt: not UTF-8 text: byte 0xff \(invalid start byte\)$"):
        read_text(file, ConfigError)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_rows_of_csv_come_with_their_lines(tmp_path, ending):
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xef\xbb\xbf" + ending.join(["a,b", "", "1,2", '"x, y",3']).encode())
    assert list(csv_rows(file)) == [(1, ["a", "b"]), (3, ["1", "2"]), (4, ["x, y", "3"])]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n\xff\n", r"not UTF-8 text: byte 0xff \(invalid start byte\), after line \d$"),
        (b'a\n"b\n', r" line 2: not valid CSV: unexpected end of data$"),
        (b"a\n1\x00\x002\n", r" line 2: not valid CSV: has the character '\\x00'$"),
        (b"a\x1b[2J\n", r" line 1: not valid CSV: has the character '\\x1b'$"),
        (b'a\n"1\n2"\n', r" line 3: not valid CSV: has the character '\\n'$"),
        (b"a\n" + b"9" * 200_000, r" line 2: not valid CSV: field larger than field limit \(131072\)$"),
    ],
)
def test_what_is_no_csv_is_refused_with_its_line(tmp_path, data, message):
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(csv_rows(tmp_path / "a.csv"))


def test_what_libraries_say_becomes_one_short_line():
    with pytest.raises(DataError) as found, reading("a.bin", "thing"):
        raise KeyError("two\nlines\x1b[2J" + 1000 * "x")
    line = str(found.value)
    assert line.startswith("a.bin: not a readable thing, truncated or damaged: 'two\\nlines\\x1b[2Jxxx")
    assert len(line) < 230 and line.isprintable()
    with pytest.raises(DataError, match=r"damaged: MemoryError$"), reading("a.bin", "thing"):
        raise MemoryError
    with pytest.raises(ConfigError, match=r"^as it is$"), reading("a.bin", "thing"):
        raise ConfigError("as it is")
    with pytest.raises(KeyboardInterrupt), reading("a.bin", "thing"):
        raise KeyboardInterrupt
    assert in_short("a\n\tb\x00c") == "a b c"
    assert quoted("a\n" + "x" * 9999) == "'a\\n" + "x" * 156 + "..."
    assert quoted(10**30) == "1" + "0" * 30


def test_columns_of_parquet_are_read_in_the_order_asked_for(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), file)
    assert column_names(file) == ["a", "b"]
    assert read_columns(file, ["b", "a"]).to_pydict() == {"b": [3, 4], "a": [1, 2]}
    file.write_bytes(file.read_bytes()[:-9])
    for read in (lambda: column_names(file, ConfigError), lambda: read_columns(file, ["a"], ConfigError)):
        with pytest.raises(ConfigError, match=r"a\.parquet: not a readable parquet file, truncated or damaged: \w"):
            read()
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), file)
    with pytest.raises(DataError, match=r"a\.parquet: has several columns of the name a$"):
        column_names(file)


def test_a_small_parquet_file_may_promise_too_much(tmp_path, monkeypatch):
    """A column of equal numbers takes next to nothing in the file."""
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.repeat(7, 10**7)}), file)
    assert file.stat().st_size < 100_000
    assert len(read_columns(file, ["a"])) == 10**7
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10_000}[name])
    with pytest.raises(DataError, match=r"a\.parquet: needs 0\.1 GiB of memory, this machine has 0\.0 GiB$"):
        read_columns(file, ["a"])
