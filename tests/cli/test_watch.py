"""`watch --web`: the page of a run folder that changes, is damaged, and comes back."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from edgesim.records.lock import hold
from edgesim.records.manifest import MANIFEST, sealed
from edgesim.studies.runs import growing_folder
from tests.calling import Done, call
from tests.reports import made_up


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Return a function that watches a folder, takes a step whenever the command would sleep, and then ends it.

    A step gets the page. If it returns anything but None, it is taken again after the next look at the folder.
    """

    def serve(folder: str, *steps: Callable[[str], object], words: tuple[str, ...] = ()) -> Done:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        left = list(steps)

        def sleep(seconds: float) -> None:
            assert seconds >= 0.5
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/")
            left.pop(0)(connection.getresponse().read().decode())
            if not left:
                raise KeyboardInterrupt

        monkeypatch.setattr("edgesim.cli.watch_page.time.sleep", sleep)
        return call("watch", folder, "--web", "--port", port, "--every", "0.5", *words)

    return serve


def test_the_page_follows_the_folder(here: Path, served: Callable[..., Done]) -> None:
    """A run is shown, then the one that replaces it, then a line for its damage, and the run again once it is whole."""
    made_up.run(here / "run", "fedavg", 1)
    manifest = here / "run/manifest.json"
    whole: list[bytes] = []

    def replaced(page: str) -> None:
        assert "fedavg, round 12, finished" in page and "Round 12 of run" in page
        shutil.rmtree(here / "run")
        made_up.run(here / "run", "fedprox", 1)

    def damaged(page: str) -> None:
        assert "fedprox, round 12, finished" in page and "Round 12 of run" in page
        whole.append(manifest.read_bytes())
        manifest.write_bytes(whole[0][:100])

    def mended(page: str) -> None:
        assert '<p class="note">run/manifest.json: ' in page and "<section" not in page
        manifest.write_bytes(whole[0])

    def gone(page: str) -> None:
        assert "fedprox, round 12, finished" in page
        shutil.rmtree(here / "run")

    def last(page: str) -> None:
        assert '<p class="note">run: not a run folder: no manifest.json' in page

    code, out, err = served("run", replaced, damaged, mended, gone, last)
    assert (code, err) == (0, "") and urlsplit(out.split()[0]).hostname == "127.0.0.1"


def test_it_waits_for_a_run_to_begin(here: Path, served: Callable[..., Done]) -> None:
    def waiting(page: str) -> None:
        assert "Waiting for the run to begin." in page

    with hold(here / "run"):
        assert served("run", waiting).code == 0


def test_the_cells_of_a_study(here: Path, served: Callable[..., Done]) -> None:
    """A cell is finished, one is at work beside its place, and one waits; what its run has done counts in the bar."""
    axes, sizes = "[axes]\nseed = [1, 2, 3]\n", "[sizes]\nfull = {}\nquick = {}\n"
    head = 'name = "mine"\nbase = "scenario.toml"\ncolumns = ["sim_time_s"]\n'
    Path("study.toml").write_text(head + axes + sizes)
    folder = here / "runs/studies/study/full"
    made_up.run(folder / "seed=1", "fedavg", 1)
    growing = growing_folder(folder / "seed=2")
    run = made_up.run(growing, "fedavg", 2)
    content = run.manifest | {"status": "running"}
    content["scenario"] = content["scenario"] | {"stop": {"rounds": 24}}
    files = content.pop("files")
    content.pop("sha256")
    (growing / MANIFEST).write_text(sealed(content, files))

    def shown(page: str) -> None:
        assert "<h1>mine, full</h1>" in page and "1 of 3 cells finished" in page and 'value="0.5"' in page
        rows = re.findall(r'<th scope=row[^>]*>([^<]*)</th>\s*<td data-label="status">([^<]*)</td>', page)
        assert rows == [("seed=2", "running"), ("seed=1", "finished"), ("seed=3", "waiting")]
        assert re.search(r'data-label="rounds">12/24<', page)

    with hold(growing):
        code, _, err = served("study.toml", shown, words=("--size", "full"))
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere", "--web"), "error: nowhere: not a run folder: no manifest.json, "),
        (("run", "--web", "--size", "full"), "error: --runs, --size: are for studies\n"),
        (("scenario.toml", "--web"), "error: scenario.toml: "),
        (("scenario.toml", "--web", "--session", "a"), "error: --session: is for a run, not for a study\n"),
        (("run", "--port", "1"), "error: --port: is for --web\n"),
        (("run", "--web", "--port", "65536"), "error: Invalid value for '--port'"),
        (("run", "--web", "--session", "other"), "error: run: has no session 'other'"),
    ],
)
def test_bad_input_is_one_line(here: Path, words: tuple[str, ...], says: str) -> None:
    made_up.run(here / "run", "fedavg", 1)
    code, out, err = call("watch", *words)
    assert (code, out) == (2, "") and err.startswith(says) and err.count("\n") == 1
