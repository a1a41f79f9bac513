"""GossipFL's slices against numbers on paper: what is mixed, what is sent and what that weighs.

Source: Tang et al. (2023): x <- x (1 - m) + m (x_i + x_j) / 2 with one random m for both.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.task import Payload, Task
from edgesim.learning.codec.encode import uplinked
from edgesim.methods.gossipfl import GossipFL, _slice
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import run
from tests.methods.hand_made import KEY
from tests.methods.peers_by_hand import PAIR, numbers_of, row, task_of, work
from tests.methods.test_dfedavg import spied
from tests.sizes import full

WEIGHTS = {"conv1": 144, "conv2": 4608, "fc1": 1280}  # of the digits' CNN
VECTORS = 58
FIRST, SECOND = row(1.0, 2, 3, 4, bias=1.0), row(5.0, 6, 7, 8, bias=3.0)


def seed_of(*wanted):
    """Return the first seed whose slice of four weights is this one."""
    return next(s for s in count() if _slice({"w": 4}, 0.5, "bernoulli", s)["w"].tolist() == list(wanted))


ODD, LAST = seed_of(True, False, True, False), seed_of(False, False, False, True)


def pair_task(method, now=ODD, later=ODD):
    """Return the task of a pair with given slices to mix and to send."""
    asked = task_of(method, PAIR, 0, weights=4, samples=(1, 1))
    assert {"slice_now", "slice_next"} <= asked.config.keys()
    return replace(asked, config={**asked.config, "slice_now": now, "slice_next": later})


def mixed(method, *heard, now=ODD):
    """Return what the first of a pair makes of its model and of messages."""
    _, kept = work(method, pair_task(method, now=now), 0, row(9.0, 9, 9, 9, bias=9.0), FIRST, heard)
    return kept


def sent(method, later=ODD):
    """Return the message of the second of a pair, which trains by nothing."""
    return work(method, pair_task(method, later=later), 1, SECOND)[0]


# --- mixing -----------------------------------------------------------------------------------------------------


def test_a_pair_averages_its_slice():
    """(1, 2, 3, 4) and (5, 6, 7, 8) on (1, 0, 1, 0): (3, 2, 5, 4). Biases stay at home."""
    message = sent(GossipFL())
    assert message.body.keys() == {"params"}
    assert numbers_of(message.body) == [5, 0, 7, 0]
    assert message.body["params"].keys() == {"w.weight"}
    after = mixed(GossipFL(), message)
    assert numbers_of(after) == [3, 2, 5, 4]
    assert after["params"]["w.bias"].tolist() == [1]


def test_a_device_whose_peer_is_silent_keeps_its_model():
    """Nothing came, or nothing that is finite."""
    message = sent(GossipFL())
    broken = message._replace(body={"params": {"w.weight": torch.full((1, 4), float("nan"))}})
    assert numbers_of(mixed(GossipFL())) == numbers_of(mixed(GossipFL(), broken)) == [1, 2, 3, 4]


def test_a_message_knows_its_slice():
    """One from an older round is mixed where it has something; a peer that never trained sends what is asked for."""
    assert numbers_of(mixed(GossipFL(), sent(GossipFL(), later=LAST))) == [1, 2, 3, 6]
    untrained = sent(GossipFL())._replace(job=-1, body=SECOND)
    assert numbers_of(mixed(GossipFL(), untrained, now=LAST)) == [1, 2, 3, 6]


def test_biases_may_be_mixed_too():
    """All of them, whatever the slice."""
    method = GossipFL(vectors=True)
    after = mixed(method, sent(method))
    assert numbers_of(after) == [3, 2, 5, 4]
    assert after["params"]["w.bias"].tolist() == [2]


# --- slices -----------------------------------------------------------------------------------------------------


def test_shares_are_exact_or_drawn_weight_by_weight():
    """Exactly 30 of 100 in each layer, or as many as 100 draws with a chance of 0.3 give, within six deviations."""
    sizes = {"a": 100, "b": 100}
    exact = [_slice(sizes, 0.3, "exact", seed) for seed in range(20)]
    drawn = [_slice(sizes, 0.3, "bernoulli", seed) for seed in range(20)]
    assert {int(mask.sum()) for each in exact for mask in each.values()} == {30}
    counts = [int(mask.sum()) for each in drawn for mask in each.values()]
    assert len(set(counts)) > 5
    assert np.mean(counts) == pytest.approx(30, abs=6 * np.sqrt(100 * 0.3 * 0.7 / 40))
    assert not np.array_equal(exact[0]["a"], exact[1]["a"])
    assert not np.array_equal(exact[0]["a"], exact[0]["b"])


@pytest.mark.parametrize("draw", ["bernoulli", "exact"])
def test_all_share_the_slice_that_was_paid_for(draw):
    """In a run all messages of a round have values in the same places, as many as their price says, and not those of
    the round before; what a round mixes is what the one before it sent.
    """
    _, backend = spied(method={"name": "gossipfl", "draw": draw, "share": 0.4}, peers="ring", stop={"rounds": 2})
    places = []
    for round_ in (0, 1):
        done = [backend.done[10 * round_ + device] for device in range(10)]
        support = [{n: t != 0 for n, t in result.body["params"].items()} for _, result in done]
        assert all(torch.equal(each[n], support[0][n]) for each in support for n in each)
        assert {f"{n}.weight": k for n, k in done[0][0].task.submodel.nnz} == {
            n: int(m.sum()) for n, m in support[0].items()
        }
        places.append(support[0])
    assert backend.done[0][0].task.config["slice_next"] == backend.done[10][0].task.config["slice_now"]
    assert any(not torch.equal(places[0][name], places[1][name]) for name in places[0])


def test_a_run_mixes_the_slice_and_nothing_else():
    """After the first round the learning rate is too small to be seen in float32."""
    training = {"lr": 0.1, "lr_decay": 1e-12}
    _, backend = spied(method={"name": "gossipfl", "share": 0.4}, peers="ring", stop={"rounds": 3}, training=training)
    for device in (0, 5):
        group = [
            backend.done[10 + (device + step) % 10][1].new_device_state["params"]["fc1.weight"] for step in (-1, 0, 1)
        ]
        in_slice = backend.done[10 + device][1].body["params"]["fc1.weight"] != 0
        expected = torch.where(in_slice, torch.stack(group).double().mean(0).float(), group[1])
        after = backend.done[20 + device][1].new_device_state["params"]["fc1.weight"]
        assert after.numpy() == pytest.approx(expected.numpy(), abs=1e-6)
        assert float((after - group[1]).abs().max()) > 1e-3


# --- what it costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vectors", "extra"), [(False, 0), (True, 4 * VECTORS)])
def test_bytes(vectors, extra):
    """From two neighbours: four bytes for each weight of the slice, the seed, no positions, and vectors if wanted."""
    method = {"name": "gossipfl", "draw": "exact", "share": 0.25, "vectors": vectors}
    jobs = frames(simulate_null(digits_scenario(method=method, peers="ring", backend="null")))["jobs"]
    kept = sum(size // 4 for size in WEIGHTS.values())
    assert set(jobs["peer_bytes"]) == {2 * (4 * kept + 8 + extra)}


def test_a_payload_of_weights_alone():
    """Whatever a device hands over, only tensors of two dimensions or more cross the link."""
    task = Task(up=Payload(weights_only=True))
    carried = uplinked({**FIRST, "buffers": {"w.mean": torch.ones(4)}}, task, Encoding(), KEY)
    assert {kind: list(tensors) for kind, tensors in carried.items()} == {"params": ["w.weight"], "buffers": []}


def test_the_whole_model_is_trained():
    """Hardware that skips zeros saves nothing."""
    same = {"peers": "ring", "cost": {"name": "measured", "sparse": "ideal"}, "backend": "null"}
    flops = [frames(simulate_null(digits_scenario(method=m, **same)))["jobs"]["flops"] for m in ("gossipfl", "dfedavg")]
    assert flops[0].tolist() == flops[1].tolist()


@full
def test_pairs_learn():
    """An odd device trains alone; the mean of all models gets better."""
    pairs = {"name": "gossip_match", "mode": "pair"}
    fleet = [{"count": 5, "cpu": {"flops_per_s": "20 MFLOP/s"}}]
    simulation = run(digits_scenario(method="gossipfl", peers=pairs, fleet=fleet, stop={"rounds": 8}))
    tables = frames(simulation)
    assert (tables["jobs"].groupby("round")["peer_bytes"].min() == 0).all()
    assert tables["evals"]["accuracy"].iloc[-1] > 0.5


@pytest.mark.parametrize(
    ("setting", "message"), [({"share": 0.0}, "method.share"), ({"draw": "topk"}, "method.draw")]
)  # fmt: skip
def test_settings_out_of_range(setting, message):
    """Each key is named."""
    with pytest.raises(ConfigError, match=message):
        digits_scenario(method={"name": "gossipfl", **setting}, peers="ring")


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "gossipfl": {
        "mixing": "test_a_pair_averages_its_slice",
        "share": "test_bytes",
        "draw": "test_shares_are_exact_or_drawn_weight_by_weight",
        "vectors": "test_biases_may_be_mixed_too",
    },
}
