"""`[[session]]`: what it inherits, what is refused, and what a scenario without it does not see."""

from __future__ import annotations

import pytest

from edgesim.config.load import load_scenario
from edgesim.config.scenario import Scenario
from edgesim.config.sections import OF_THE_WORLD, SessionTable
from edgesim.core.errors import ConfigError
from edgesim.runs.training import assemble_all
from tests.conftest import timing_scenario

FLEET = [{"name": "phone", "count": 3, "cpu": {"flops_per_s": 1e9}}, {"name": "board", "cpu": {"flops_per_s": 1e9}}]


def refusal(session: object, **changes: object) -> str:
    """Return the line with which a scenario with these sessions is refused."""
    with pytest.raises(ConfigError) as caught:
        assemble_all(timing_scenario(fleet=FLEET, session=session, **changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


ALLOWED = (
    "name, devices, start, data, partition, data_seed, model, training, cost, selection, method, "
    "objective, server_optimizer, protocol, controller, peers, encoding, evaluation, stop"
)


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (5, "session: must be a list of tables, each headed [[session]], got 5"),
        ({"name": "a"}, "session: must be a list of tables, each headed [[session]], got {'name': 'a'}"),
        ([5], "session.0: must be a table, got 5"),
        ([{}, {"network": "ideal"}],
         f"session.1.network: belongs to the scenario, whose world all sessions share (allowed here: {ALLOWED})"),
        ([{"seed": 2}],
         f"session.0.seed: belongs to the scenario, whose world all sessions share (allowed here: {ALLOWED})"),
        ([{"devics": "phone"}], 
         "session.0.devics: unknown key; did you mean 'devices'? (`edgesim schema` lists all 19)"),
        ([{"name": "a"}, {"name": "a"}], "session.1.name: 'a' is the name of another session"),
        ([{"devices": "fone"}], "session.0.devices: no fleet block is called 'fone' (there are phone, board)"),
        ([{"devices": [[2, 4]]}], "session.0.devices: must be first and last of the ids 0 to 3, got [2, 4]"),
        ([{"devices": [[2, 1]]}], "session.0.devices: must be first and last of the ids 0 to 3, got [2, 1]"),
        ([{"devices": []}],
         "session.0.devices: must be a list of names of fleet blocks and of pairs [first, last], got []"),
        ([{"start": "9 s", "stop": {"sim_time": "9 s"}}],
         "session.0.start: must be before stop.sim_time, 9 s, got 9 s"),
        ([{"stop": {"cost": "5 EUR"}}], "session.0.stop: cost is 5 EUR, but the section prices names none"),
        ([{}, {"selection": {"name": "uniform", "count": 3}, "devices": "board"}],
         "session.1.selection.count: must be at most the 1 devices of the fleet, found 3"),
        ([{"start": 1e18}], "session.0.start: must be less than or equal to 1000000000, got 1e+18"),
        ([{"edges": {"rounds": 2}}],
         f"session.0.edges: belongs to the scenario, whose world all sessions share (allowed here: {ALLOWED})"),
        ([{}, {"training": {"lr": -1}}], "session.1.training.lr: must be greater than 0, got -1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_key(session, message):
    assert refusal(session) == message


def test_edge_servers_train_for_one_scenario():
    message = "edges: edge servers train for a scenario without [[session]]; leave one of both out"
    for sessions in ([{}], [{}, {}]):
        assert refusal(sessions, edges={"rounds": 2}, topology={"name": "tree", "edge_servers": 2}) == message


def test_every_key_is_of_the_world_or_of_a_session():
    """A key that is neither would be an unknown one in a session, and no mistake could name it."""
    own = set(SessionTable.model_fields) - {"devices", "start"}
    assert own | (OF_THE_WORLD - {"extends"}) == set(Scenario.model_fields)
    assert own & OF_THE_WORLD == set()


def test_the_name_of_a_session_is_fit_for_files():
    assert refusal([{"name": "a/b"}]).startswith("session.0.name: ")


def test_a_session_is_laid_over_its_scenario():
    """As a file over the one that it extends: tables merge, and a part of another name replaces its section."""
    scenario = timing_scenario(
        fleet=FLEET,
        selection={"name": "uniform", "count": 2},
        training={"batch": 20, "lr": 0.05, "momentum": 0.9},
        session=[{"training": {"lr": 0.1}}, {"name": "own", "selection": "all", "stop": {"sim_time": "9 s"}}],
    )
    first, second = scenario.trainings
    assert (first.training.lr, first.training.momentum, first.training.batch) == (0.1, 0.9, 20)
    assert (first.session_name, second.session_name) == ("session1", "own")
    assert (first.selection.name, second.selection.name) == ("uniform", "all")
    assert (second.stop.rounds, second.stop.sim_time) == (1, 9.0)
    assert first.fleet == second.fleet == scenario.fleet


def test_what_is_written_down_loads_again():
    """The canonical scenario, that of all sessions and that of one, is the same scenario with the same digest."""
    scenario = timing_scenario(fleet=FLEET, session=[{}, {"devices": ["board", [0, 1]], "start": "2 s"}])
    for each in (scenario, *scenario.trainings):
        again = load_scenario(each.canonical())
        assert again == each
        assert again.digest() == each.digest()
    assert len({each.digest() for each in (scenario, *scenario.trainings)}) == 3


def test_a_scenario_without_sessions_says_nothing_of_them():
    scenario = timing_scenario()
    assert "session" not in scenario.canonical()
    assert scenario.trainings == (scenario,)


def test_samples_go_to_those_who_take_part():
    """A partition deals what there is to the devices of the session, in its order, and nothing to the others."""
    sessions = [{"devices": [[1, 2]], "partition": {"name": "sizes", "samples_per_device": 7}}]
    parts = assemble_all(timing_scenario(fleet=FLEET, session=sessions))[0]
    assert parts.setting.samples.tolist() == [0, 7, 7, 0]
    assert parts.setting.devices == 2
