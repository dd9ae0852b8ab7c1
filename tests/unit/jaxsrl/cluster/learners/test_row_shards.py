"""What processes save of their rows, put together, is what one process with all rows saves."""

import numpy as np
import pytest

from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotViews, allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.checkpoints.names import EPISODES, LOG
from jaxsrl.cluster.learners.host_gather import pack, unpack
from jaxsrl.cluster.learners.row_shards import merge_row_shards, row_arrays, row_shard
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.metrics.episodes import EpisodeTracker
from jaxsrl.training.run_state import named

ROWS, STEPS = 12, 5
SPEC = EnvSpec("test", {"x": ArraySpec((2,), "float32")}, DiscreteSpec(3))


def slot_of(seed: int) -> SlotViews:
    """A slot of all rows with episodes that end here and there."""
    slot = allocate_slots(make_layout(SPEC, PoolShape(1, 1, 1, ROWS, STEPS, 1), {}))[0]
    draw = np.random.default_rng(seed)
    slot.observation["x"][...] = draw.normal(size=slot.observation["x"].shape)  # pyright: ignore
    slot.action[...] = draw.integers(0, 3, slot.action.shape)  # pyright: ignore
    slot.reward[...] = draw.normal(size=slot.reward.shape)
    slot.terminated[...] = draw.random(slot.terminated.shape) < 0.2
    slot.terminated[:, 0] = False  # an episode that lasts
    slot.truncated[...], slot.valid[...] = False, True
    slot.is_first[1:] = slot.terminated
    return slot


def rows_of(slot: SlotViews, rows: slice) -> SlotViews:
    fields = {name: value for name, value in vars(slot).items() if name not in ("infos", "extras", "agent_state")}
    cut = {
        name: map_leaves(lambda leaf: leaf[:, rows], value) for name, value in fields.items() if name not in ONE_A_PART
    }
    kept = {name: fields[name] for name in ONE_A_PART}
    return SlotViews(**cut, **kept, extras={}, infos={}, agent_state=())


ONE_A_PART = ("incarnation", "stepped_at")


def saved_of(rows: slice, slots: int) -> dict[str, np.ndarray]:
    number = rows.stop - rows.start
    tracker, log = EpisodeTracker(number), EpisodeLog(number, 0, SPEC)
    for seed in range(slots):
        slot = rows_of(slot_of(seed), rows)
        tracker.observe(slot)
        log.observe(slot)
    return {EPISODES + name: value for name, value in tracker.to_arrays().items()} | {
        LOG + name: value for name, value in log.to_arrays().items()
    }


def shares(processes: int, slots: int) -> list[dict[str, np.ndarray]]:
    size = ROWS // processes
    return [saved_of(slice(p * size, (p + 1) * size), slots) for p in range(processes)]


@pytest.mark.parametrize("processes", [2, 3])
def test_shares_put_together_are_what_one_process_saves(processes):
    whole, together = saved_of(slice(0, ROWS), 4), merge_row_shards(shares(processes, 4))
    assert set(whole) == set(together)
    for name in whole:
        if name != EPISODES + "recent":
            np.testing.assert_array_equal(whole[name], together[name], err_msg=name)
    one, other = (np.sort(saved[EPISODES + "recent"], axis=0) for saved in (whole, together))
    np.testing.assert_array_equal(one, other)


def test_a_share_restores_the_rows_of_a_process():
    whole = {**saved_of(slice(0, ROWS), 4), "learner.params": np.arange(3)}
    for process, wanted in enumerate(shares(3, 4)):
        share = row_shard(whole, process, 3)
        np.testing.assert_array_equal(share["learner.params"], [0, 1, 2])
        log = EpisodeLog(ROWS // 3, 4 * STEPS, SPEC)
        reset = log.restore(named(share, LOG))
        again = {LOG + name: value for name, value in log.to_arrays().items()}
        for name in wanted.keys() & again.keys():
            np.testing.assert_array_equal(again[name], wanted[name], err_msg=name)
        assert [len(actions) if actions is not None else 0 for actions in reset.actions] == list(
            wanted[LOG + "lengths"]
        )


def test_a_checkpoint_without_rows_is_the_same_for_every_process():
    arrays = {"learner.params": np.arange(3), "steps": np.array(7)}
    share = row_shard(arrays, 1, 2)
    assert set(share) == set(arrays)
    np.testing.assert_array_equal(share["learner.params"], [0, 1, 2])


def test_every_episode_counts_in_one_share_alone():
    whole = saved_of(slice(0, ROWS), 4)
    parts = [row_shard(whole, process, 3) for process in range(3)]
    assert sum(int(part[EPISODES + "count"]) for part in parts) == int(whole[EPISODES + "count"]) > 0
    assert sum(float(part[EPISODES + "return_sum"]) for part in parts) == float(whole[EPISODES + "return_sum"]) != 0.0
    assert sum(len(part[EPISODES + "recent"]) for part in parts) == len(whole[EPISODES + "recent"])


def test_arrays_come_back_from_their_bytes_with_padding_behind():
    arrays = {**row_arrays(saved_of(slice(0, ROWS), 2)), "empty": np.zeros((0, 3), np.uint8), "none": np.float64(2.5)}
    arrays["none"] = np.asarray(arrays["none"])
    again = unpack(pack(arrays) + b"\0" * 77)
    assert list(again) == list(arrays)
    for name, value in arrays.items():
        assert again[name].dtype == value.dtype
        np.testing.assert_array_equal(again[name], value)
