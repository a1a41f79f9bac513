"""Memory in use, by files of /proc that a test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgesim.runs import host_memory


def process(proc: Path, pid: int, files_kb: int, own_kb: int, shared_kb: int, children: str) -> None:
    """Write what Linux tells of a process, with a thread that started these children."""
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "task" / str(pid) / "children").write_text(children)
    (folder / "status").write_text(f"Name:\tpython\nRssAnon:\t 999 kB\nRssFile:\t {files_kb} kB\nThreads:\t1\n")
    sizes = f"Rss: 9999 kB\nPss: 99 kB\nPss_Anon: {own_kb} kB\nPss_Shmem: {shared_kb} kB\n"
    (folder / "smaps_rollup").write_text(f"00400000-7ffd0000 ---p 00000000 00:00 0 [rollup]\n{sizes}")


def test_the_memory_of_all_processes_counts_shared_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process forks two workers, one of which has just ended."""
    monkeypatch.setattr(host_memory, "_PROC", tmp_path)
    process(tmp_path, os.getpid(), files_kb=300, own_kb=400, shared_kb=10, children="2 ")
    process(tmp_path, 2, files_kb=200, own_kb=50, shared_kb=0, children="3 4 ")
    process(tmp_path, 3, files_kb=350, own_kb=40, shared_kb=20, children="")
    assert host_memory.resident_bytes() == 1024 * (400 + 10 + 50 + 40 + 20 + 350)


def test_a_system_without_proc_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_PROC", tmp_path / "none")
    assert host_memory.resident_bytes() is None
