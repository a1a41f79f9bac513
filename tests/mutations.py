"""Plants faults in a copy of edgesim, one at a time, and says which of them the tests catch. By hand:

    python -m tests.mutations                      # every fault, against the short tests of the folders it is about
    python -m tests.mutations 3 17 --size all      # two of them, against all tests of these folders
    python -m tests.mutations --everywhere         # against the tests of all folders

A fault is found by its code, wherever in the package that lies. The exit code is 1 if one was missed, and 2 if the
code of one is not there exactly once, so that it could not be planted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HUNG_S = "60"  # seconds after which a test has failed: a fault may let a run go on for ever


class Mutation(NamedTuple):
    """A fault: what is wrong, the code `old` that becomes `new`, and the folders of tests that it is about."""

    wrong: str
    old: str
    new: str
    folders: tuple[str, ...] = ("engine", "world", "validation", "golden")


LEARNED = ("learning", "methods", "contracts", "golden")
MUTATIONS = (
    # joules
    Mutation("what a device spends on sending to peers is missing in the total", "_spent_j += up_j", "_spent_j += 0.0"),
    Mutation("busy seconds are not booked", "spent[row + _BUSY] += busy_s", "spent[row + _BUSY] += 0.0 * busy_s"),
    Mutation(
        "a working server draws its idle power twice",
        "(busy_w - idle_w) * busy_s",
        "busy_w * busy_s",
    ),
    Mutation(
        "links take joules a byte instead of joules a bit",
        "8.0 * float(j_per_bit[sent.device]) * sent.nbytes",
        "float(j_per_bit[sent.device]) * sent.nbytes",
    ),
    Mutation(
        "busy power counts idle power again",
        'key.numpy(), path) - shared["idle_w"]',
        'key.numpy(), path) + shared["idle_w"]',
    ),
    Mutation(
        "a broken-off job is charged what it did not do",
        "latency_s + (1.0 - compute) * prices.compute_s",
        "latency_s + compute * prices.compute_s",
    ),
    Mutation(
        "receiving takes the power of transmitting",
        "down_j=fleet.receive_w[ids] * down_air_s",
        "down_j=fleet.transmit_w[ids] * down_air_s",
    ),
    Mutation(
        "a job that is broken off is charged its whole upload",
        "down * prices.down_j, compute * prices.compute_j, up * prices.up_j",
        "down * prices.down_j, compute * prices.compute_j, prices.up_j",
    ),
    Mutation("a load charges a battery", "charge_w - load_w)", "charge_w + load_w)"),
    Mutation("power grows with the square of the frequency", "frequency_hz**3", "frequency_hz**2"),
    Mutation(
        "computing draws nothing from a peer's battery",
        "prices.compute_j / prices.compute_s if prices.compute_s > 0 else 0.0)",
        "0.0)",
        ("engine",),
    ),
    Mutation(
        "a device without a job sends on without power",
        "if trip is None:  # it was sending what it made before\n            self._gone(device)",
        "if trip is None:  # it was sending what it made before\n            pass",
        ("engine",),
    ),
    # seconds
    Mutation(
        "a message pauses for its sender's link alone",
        "np.logical_and(ends[:, 0], ends[:, 1])",
        "np.logical_and(ends[:, 0], ends[:, 0])",
    ),
    Mutation(
        "a message begins anew after an outage",
        "flow.sendings * (flow.nbytes - flow.moved_bytes)",
        "flow.sendings * flow.nbytes",
        ("engine",),
    ),
    Mutation(
        "a free worker of the server stands by",
        "heapreplace(free, (done + work, worker))",
        "heapreplace(free, (max(free)[0] + work, worker))",
        ("engine",),
    ),
    Mutation(
        "uploads take the speed of downloads",
        "self.up_bps if up else self.down_bps)[rows]",
        "self.down_bps if up else self.up_bps)[rows]",
    ),
    Mutation(
        "own links have no latency",
        "latency_s: Arr = self.latency_s[rows]\n        if self.jitter_s",
        "latency_s: Arr = 0.0 * self.latency_s[rows]\n        if self.jitter_s",
    ),
    Mutation("jitter moves the mean latency", "* normal - variance / 2.0", "* normal + variance / 2.0"),
    Mutation("lost packets are sent again once at most", "packets * loss / (1.0 - loss)", "packets * loss"),
    Mutation(
        "peers mix when the first message is there, not the last",
        "if flow.ends_s > self.fetched_s",
        "if flow.ends_s < self.fetched_s",
    ),
    # protocols
    Mutation(
        "all servers of a tier draw alike",
        "view.choose(self._decides.at(Purpose.EDGES",
        "view.choose(self._key.at(Purpose.EDGES",
        ("engine",),
    ),
    Mutation(
        "a server of a tier counts only the samples of one edge server",
        "merged = sum((reports[each.job.id] for each in used), OrderReport())",
        "merged = next((reports[each.job.id] for each in used), OrderReport())",
        ("engine",),
    ),
    Mutation(
        "two models of an edge server have one name",
        "session.model = session.model._replace(version=session.model.version + 1)",
        "session.model = session.model._replace(version=session.model.version)",
        ("engine",),
    ),
    Mutation("sessions draw alike", "_WORD * session_word", "_WORD * 0", ("engine",)),
    Mutation(
        "a session gives up while others have its devices",
        "int(busy.sum()) > len(self.running)",
        "int(busy.sum()) > len(busy)",
        ("engine",),
    ),
    Mutation("a run takes one round more", "self.session.round >= stop.rounds", "self.session.round > stop.rounds"),
    Mutation(
        "a completion exactly at the deadline is late",
        "due_s - session.now_s <= ON_TIME_S",
        "due_s - session.now_s <= 1.0 + ON_TIME_S",
    ),
    Mutation("the quantile is rounded down to a job", 'method="higher"', 'method="lower"'),
    Mutation("deviations shorten the deadline", "median_s + self._rule.k", "median_s - self._rule.k"),
    Mutation("staleness counts from 1", "(staleness + 1.0) ** -a", "(staleness + 2.0) ** -a", ("engine", "methods")),
    Mutation(
        "updates of the highest staleness allowed go",
        "staleness > rule.max_staleness",
        "staleness >= rule.max_staleness",
    ),
    Mutation(
        "the hinge bends at -b", "(staleness - self.b) + 1.0", "(staleness + self.b) + 1.0", ("engine", "methods")
    ),
    Mutation(
        "models are tested a round late",
        "done % self._evaluation.every",
        "(done + 1) % self._evaluation.every",
        ("engine", "end_to_end"),
    ),
    # what is learned
    Mutation("the mean forgets its weights", "alpha=each.weight / total", "alpha=1.0 / len(held)", LEARNED),
    Mutation(
        "SCAFFOLD corrects the wrong way",
        "g + local.scratch.correction[name]",
        "g - local.scratch.correction[name]",
        LEARNED,
    ),
    Mutation("FedBuff steps away", "step, self.eta_g)", "step, -self.eta_g)", LEARNED),
    Mutation("a sum of models forgets the weights", "sum_.add_(x, alpha=weight)", "sum_.add_(x)", LEARNED),
    Mutation("the proximal term pushes", "alpha=mu)", "alpha=-mu)", LEARNED),
    Mutation(
        "short gradients are stretched", "(norm / (total + 1e-6)).clamp(max=1.0)", "(norm / (total + 1e-6))", LEARNED
    ),
    Mutation(
        "weight decay takes the place of momentum",
        "torch._foreach_mul_(kept, local_sgd.momentum)",
        "torch._foreach_mul_(kept, local_sgd.weight_decay)",
        LEARNED,
    ),
    # prices
    Mutation(
        "weight decay costs nothing",
        "2.0 + 2.0 * momentum + 2.0 * weight_decay",
        "2.0 + 2.0 * momentum",
        ("learning", "world", "core", "contracts", "methods"),
    ),
    Mutation(
        "a bitmap lacks its last byte", "-(-self.masked // 8)", "self.masked // 8", ("core", "learning", "methods")
    ),
    Mutation(
        "the scale of a layer is not sent",
        "SCALE_BYTES * held.collections * held.layers * self.scaled",
        "0 * held.collections * held.layers * self.scaled",
        ("core", "learning", "methods"),
    ),
    Mutation("a step passes on what it left out", "return rest(self.passed(held))", "return rest(held)", ("learning",)),
    Mutation("a device decodes for nothing", "step.flops(at)[: 1 + feedback]", "step.flops(at)[:1]", ("learning",)),
    Mutation(
        "a weight that was sent keeps its momentum",
        "t.masked_fill(sent[n], 0.0) if n in sent else t",
        "t",
        ("learning",),
    ),
    Mutation("what was not sent is lost", "tensor - got[name] for name", "0.0 * tensor for name", ("learning",)),
    # units, files and records
    Mutation("a byte has ten bits", "byte = 8 * bit = B", "byte = 10 * bit = B", ("config",)),
    Mutation("a MiB has a million bytes", "mebi- = 1048576 = Mi-", "mebi- = 1000000 = Mi-", ("config",)),
    Mutation(
        "tables with negative seconds are read",
        "fits = number & (values >= least)",
        "fits = number",
        ("records", "end_to_end"),
    ),
    Mutation(
        "damaged files of a run are read",
        'if file_digest(file, "sha256").hexdigest() == digest:',
        "if len(digest) == 64:",
        ("records", "end_to_end", "fuzz"),
    ),
    # execution and runs
    Mutation(
        "a device's earlier job is not trained first",
        "*chain[place - 1 : place],",
        "*chain[place:place],",
        ("execution", "contracts"),
    ),
    Mutation(
        "a checkpoint of another scenario is taken",
        "if stamp.get(key) != value]",
        "if stamp.get(key) is value is None]",
        ("execution", "contracts"),
    ),
    Mutation(
        "devices train on the server's own samples",
        "return np.delete(rows, server_set.rows)",
        "return rows",
        ("learning", "methods"),
    ),
    # reports, studies and the command line
    Mutation(
        "a target is reached with the last evaluation that does",
        "reached[name].iloc[0].item()",
        "reached[name].iloc[-1].item()",
        ("records", "reports"),
    ),
    Mutation(
        "bystanders are the devices that had jobs",
        '(devices["jobs"] == 0) & (devices["device"] >= 0)',
        '(devices["jobs"] > 0) & (devices["device"] >= 0)',
        ("engine", "reports"),
    ),
    Mutation(
        "failed jobs count as late",
        'late_share=counts["late_jobs"] / counts["jobs"]',
        'late_share=counts["failed_jobs"] / counts["jobs"]',
        ("reports",),
    ),
    Mutation(
        "the server's work counts as a wait for devices",
        '(rounds["now_s"] - rounds["start_s"]).to_numpy() - server_s)',
        '(rounds["now_s"] - rounds["start_s"]).to_numpy())',
        ("reports",),
    ),
    Mutation(
        "joules are shown in the wrong unit", "{_short(value / unit.size)}", "{_short(value)}", ("reports", "cli")
    ),
    Mutation(
        "Holm's correction is Bonferroni's",
        "given[order] * np.arange(len(order), 0, -1)",
        "given[order] * len(order)",
        ("studies",),
    ),
    Mutation("a tie counts as a win", "(wins + ties / 2) / pairs", "(wins + ties) / pairs", ("studies",)),
    Mutation(
        "a front takes high accuracies for losses",
        '1.0 if ways[column] == "lower" else -1.0',
        '1.0 if ways[column] == "lower" else 1.0',
        ("studies",),
    ),
    Mutation(
        "a mistake ends with exit code 1",
        'print(frames, end="", file=sys.stderr)\n    return 2',
        'print(frames, end="", file=sys.stderr)\n    return 1',
        ("cli",),
    ),
    # more of what is learned, and of the world
    Mutation(
        "the median of an even number is the upper one", "(n - 1) // 2 : n // 2 + 1", "n // 2 : n // 2 + 1", LEARNED
    ),
    Mutation(
        "Krum counts the distance to itself", "distances.sort(1).values[:, 1:]", "distances.sort(1).values", LEARNED
    ),
    Mutation(
        "FedNova adds moves of any number of steps alike",
        "weights = effective * shares / lengths",
        "weights = effective * shares / lengths.mean()",
        LEARNED,
    ),
    Mutation(
        "a thinner network keeps the wrong columns",
        "torch.tensor(self.channels[layer.columns]) * layer.column_spread",
        "torch.tensor(self.channels[layer.columns])",
        LEARNED,
    ),
    Mutation("sums of masked numbers overflow", "return bits + (devices - 1).bit_length()", "return bits", LEARNED),
    Mutation(
        "seconds off end with the first",
        "todo = todo[at_s[todo] < now_s]\n        return total_s",
        "break\n        return total_s",
        ("world",),
    ),
    # code of users
    Mutation(
        "sleep of an app's client takes no time",
        "(seconds + task.counted.idle_s, joules)",
        "(seconds, joules)",
        ("engine", "flower"),
    ),
    Mutation(
        "a device keeps its state although its call was not computed",
        "if completion.computed and called is not None:",
        "if called is not None:",
        ("engine", "flower"),
    ),
    Mutation(
        "a call whose time is over is not answered",
        "if call.number not in in_time:",
        "if call.number in in_time:",
        ("engine", "flower"),
    ),
    Mutation(
        "a cached call is used although a file that it read has changed",
        "return ReadFile(path, found.st_size, found.st_mtime_ns)",
        "return ReadFile(path, 0, 0)",
        ("engine",),
    ),
    Mutation(
        "the first price of a device is that of all devices",
        "self._prices.setdefault((call.device, call.kind, call.signature), called.work)",
        "self._prices.setdefault((0, call.kind, call.signature), called.work)",
        ("engine",),
    ),
    Mutation(
        "picked rows count as all rows of a tensor",
        "if op.picks:  # it reads the rows that it picks, and not all that there are",
        "if False:",
        ("foreign", "flower"),
    ),
    Mutation(
        "a loop may do twice the work of its price",
        "_MOST_OFF = 0.01",
        "_MOST_OFF = 1.01",
        ("foreign",),
    ),
)


def place_of(mutation: Mutation, package: Path) -> Path:
    """Return the file that has the code of a fault. Raises LookupError unless it is there exactly once."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    counts = {path: text.count(mutation.old) for path, text in texts.items() if mutation.old in text}
    if sum(counts.values()) != 1:
        places = ", ".join(f"{path.relative_to(package)} ({count})" for path, count in counts.items()) or "nowhere"
        raise LookupError(f"{mutation.old!r} has to be in the package once, is in: {places}")
    return next(iter(counts))


def copied(folder: Path) -> Path:
    """Return a copy of the files of this tree that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def failing(tree: Path, folders: Sequence[str], size: str, processes: int) -> str:
    """Return the first test of some folders that fails in a tree; "" if all pass. Raises RuntimeError if none runs."""
    spread = ["-n", str(processes), "--dist", "worksteal"] if processes > 1 else []
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "--timeout",
        HUNG_S,
        *spread,
        *folders,
    ]
    settings = {"PYTHONPATH": str(tree), "EDGESIM_TEST_SIZE": size, "HYPOTHESIS_PROFILE": "first"}
    done = subprocess.run(words, cwd=tree, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    found = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode not in (1, 2) or not found:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return found[0].partition(" - ")[0]


def main() -> int:
    """Plant the faults that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "numbers", nargs="*", type=int, metavar="NUMBER", help=f"from 1 to {len(MUTATIONS)}; all if none"
    )
    parser.add_argument("--size", choices=["short", "all"], default="short", help="of the tests")
    parser.add_argument("--everywhere", action="store_true", help="run the tests of all folders")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="run these, whatever the fault is about")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    wanted = given.numbers or range(1, len(MUTATIONS) + 1)
    if wrong := [number for number in wanted if not 1 <= number <= len(MUTATIONS)]:
        parser.error(f"no such fault: {wrong[0]}")
    try:
        for mutation in MUTATIONS:
            place_of(mutation, ROOT / "edgesim")
    except LookupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as temporary:
        tree = copied(Path(temporary))
        for number in wanted:
            mutation = MUTATIONS[number - 1]
            path = place_of(mutation, tree / "edgesim")
            right, began_s = path.read_text(encoding="utf-8"), time.monotonic()
            path.write_text(right.replace(mutation.old, mutation.new), encoding="utf-8")
            about = [f"tests/{folder}" for folder in mutation.folders]
            folders = ["tests"] if given.everywhere else given.tests or about
            found = failing(tree, folders, given.size, given.processes)
            path.write_text(right, encoding="utf-8")
            missed += not found
            print(f"{number:2} {'caught' if found else 'MISSED'} {time.monotonic() - began_s:5.0f} s  {mutation.wrong}")
            print(f"      {found or ' '.join(folders)}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} caught by the {given.size} tests")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
