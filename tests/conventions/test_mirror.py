"""Tests mirror the package: tests/world/test_fleet.py is about edgesim/world/fleet.py, and tests/world/test_named.py
about edgesim/world/links/named.py: folders inside of a package are left out.
"""

from __future__ import annotations

from tests.conventions.source_tree import PACKAGE, ROOT

TESTS = ROOT / "tests"
# Folders of tests that are about no package of edgesim, each with what it is about.
BESIDE = {
    "analysis": "the scripts in analysis/",
    "benchmarks": "the benchmarks in benchmarks/",
    "contracts": "what every method, backend and part of the world promises",
    "conventions": "rules of the house",
    "docs": "pages",
    "end_to_end": "whole runs, studies and refusals, through the command line or Python",
    "fuzz": "mutated scenarios and damaged files",
    "golden": "tables of two runs that no change may move",
    "outside": "methods and models that tests define as a user would",
    "package": "the wheel, and what it says of itself",
    "plugins": "parts that tests define as a user would",
    "rivals": "other simulators",
    "validation": "items of the page about validation",
}
# Tests of a package that are about no single module of it, each with what they are about.
ABOUT_SEVERAL = {
    "cli": {
        "advice": "what `show` and `validate` say of scenarios",
        "commands": "exit codes and streams of all commands",
        "commands_for_real": "all commands on real runs",
        "fresh_processes": "all commands in processes of their own",
        "hostile_files": "names and files that are meant to do harm",
        "live": "the live view, from two processes",
        "watch_in_browser": "the page of `watch --web` in a browser",
        "loading": "what commands load",
        "messages": "errors, warnings and closed pipes of all commands",
        "numbers": "numbers in the tables of all commands",
        "calibrate": "`calibrate`, in edgesim/cli/parts.py",
        "flops": "`flops`, in edgesim/cli/parts.py",
        "estimate": "`estimate`, in edgesim/cli/scenarios.py",
        "explain": "`explain`, in edgesim/cli/look.py",
        "start_up": "modules that commands load, in processes of their own",
        "table": "`table`, in edgesim/cli/look.py",
    },
    "config": {"shipped_scenarios": "scenarios that are named edgesim:NAME"},
    "flower": {
        "like_a_scenario": "the same training as a scenario and as an app",
        "on_fleets": "apps whose devices crash, leave or run empty",
    },
    "engine": {
        "accounts": "joules of devices, network and server in runs and reports",
        "battery_speed": "batteries worked out for many jobs at once",
        "churn_properties": "laws of random runs",
        "costs": "money and carbon of runs",
        "energy": "joules of runs, and the ledger that closes",
        "failures_in_runs": "failures in the event loop",
        "gossip_churn": "laws of random runs of peers",
        "killed_devices": "training on devices that die",
        "milestones": "runs that end because they have not learned enough",
        "mutants": "whether these tests notice faults",
        "outside_parts": "parts of the engine as a user would write them",
        "one_draw": "draws that do not depend on how the engine asks",
        "peer_physics": "batteries, outages and partial work of peers",
        "physics": "batteries, memory, frequencies and slow-downs in the event loop",
        "server_tiers": "edge servers below edge servers",
        "shared_links": "jobs over shared links in the event loop",
        "tree_churn": "laws of random runs with edge servers",
    },
    "learning": {
        "deep_gradient_compression": "encodings with momentum and warm-up, as in their paper",
        "low_rank": "encodings of low rank",
        "random_prices": "prices of random networks",
        "training_memory": "predicted memory against real steps",
        "update": "encoded updates, by all steps",
    },
    "methods": {
        "dadpfl_failures": "DA-DPFL where peers die",
        "outside_methods": "methods as a user would write them",
    },
    "reports": {
        "energy_attribution": "joules by device, component and activity",
        "gantt": "Gantt charts, in edgesim/reports/pictures.py",
        "maps": "pictures of topologies",
        "plots": "accuracy over time, in edgesim/reports/pictures.py",
        "report": "the report of a study",
        "report_in_browser": "the same in a browser",
        "session_views": "runs of several sessions",
        "study_pictures": "pictures of a study, by the command line",
    },
    "studies": {
        "dadpfl_table_2": "a table of the paper from networks, masks and prices",
        "decisions": "commands that make a decision of a study",
        "published": "published numbers in studies",
        "pytest_plugin": "edgesim/pytest_plugin.py",
        "study_axes": "axes of studies that are keys",
        "study_run": "`study run`",
        "void_axes": "axes that change nothing",
    },
    "world": {
        "impaired_links": "jitter and loss of every kind of link",
        "peer_graphs": "every part of world/peers",
        "total_cost": "the cost model of the DA-DPFL study",
    },
}


def test_every_folder_of_tests_is_a_package_or_said_to_be_none() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/*.py")}
    assert {name for name in folders if not (PACKAGE / name).is_dir()} == set(BESIDE)


def test_every_test_of_a_package_is_of_a_module_or_said_to_be_of_several() -> None:
    """A folder of the package counts as a module. What is listed has no module, and is there."""
    several: dict[str, set[str]] = {}
    for path in sorted(TESTS.glob("*/test_*.py")):
        package, name = PACKAGE / path.parent.name, path.stem.removeprefix("test_")
        if package.is_dir() and not any(package.rglob(f"{name}.py")) and not any(package.rglob(f"{name}/__init__.py")):
            several.setdefault(package.name, set()).add(name)
    assert several == {package: set(names) for package, names in ABOUT_SEVERAL.items()}
