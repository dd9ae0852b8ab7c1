"""PPG: its losses by hand, when the auxiliary phase runs and on what, and what it leaves alone."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import ppg
from agents.api import Progress, Trajectory
from agents.catalog import fill_sizes
from agents.networks.config import NetworkConfig
from agents.networks.distributions import ILLEGAL, categorical, distribution_for
from agents.networks.phasic import Phasic, PhasicOutputs, make_phasic, policy_divergence
from agents.ops.minibatches import shuffled_minibatches
from agents.ops.phase_memory import PhaseMemory
from agents.ops.policy_gradient import SurrogateCoefficients
from agents.ops.schedules import ScheduleConfig
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec
from jaxsrl.config.serialization import from_json, to_json
from jaxsrl.learner.mesh import LearnerMesh

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(8,))
STEPS, ROWS = 4, 8
CONFIG = ppg.PPGConfig(
    rollout_length=STEPS, num_rows=ROWS, num_minibatches=2, num_policy_phases=2, num_auxiliary_epochs=2,
    num_auxiliary_minibatches=2, learning_rate=5e-3, auxiliary_learning_rate=5e-3,
)  # fmt: skip
PHASIC = make_phasic(NETWORK, SPEC)


def trajectory(seed=0, p_end=0.2) -> Trajectory:
    rng, shape = np.random.default_rng(seed), (STEPS, ROWS)
    terminated = rng.random(shape) < p_end
    valid = np.ones(shape, bool)
    valid[1:] = ~terminated[:-1]
    terminated &= valid
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, ROWS, 3)).astype(np.float32),
        is_first=np.zeros((STEPS + 1, ROWS), bool),
        action=rng.integers(0, 2, shape).astype(np.int32),
        reward=(3.0 * rng.normal(size=shape) * valid).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, bool),
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={"behavior_log_prob": np.full(shape, np.log(0.5), np.float32)},
    )


@pytest.fixture(scope="module")
def agent():
    made = ppg.make_ppg(CONFIG, SPEC, NETWORK)
    return made._replace(init=jax.jit(made.init), update=jax.jit(made.update))


@pytest.fixture(scope="module")
def updated(agent):
    """States before and after each of three updates, and the metrics of each."""
    states, found = [agent.init(jax.random.key(1))], []
    for number in range(3):
        state, metrics = agent.update(states[-1], trajectory(number), jax.random.key(number))
        states.append(state)
        found.append(metrics)
    return states, found


def num_steps(opt_state) -> int:
    """Gradient steps that an Adam has made."""
    return int(optax.tree.get_all_with_path(opt_state, "count")[0][1])


def fixed_network() -> Phasic:
    """Outputs that are the parameters themselves."""
    return Phasic(
        net=PHASIC.net._replace(distribution=categorical(2)),
        outputs=lambda params, _: PhasicOutputs(params["logits"], params["value"], params["auxiliary"]),
        divergence=policy_divergence(SPEC),
    )


def outputs_of(logits, value, auxiliary):
    return {"logits": jnp.array([[logits]]), "value": jnp.array([[value]]), "auxiliary": jnp.array([[auxiliary]])}


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.1, 2.0, -2.2), (1.5, 2.0, -2.4), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6)],
)
def test_policy_loss_is_surrogate_plus_value_error_minus_entropy(ratio, advantage, expected):
    config = dataclasses.replace(CONFIG, value_coef=0.7, entropy_coef=0.3, normalize_advantage=False)
    array = partial(jnp.full, (1, 1), dtype=jnp.float32)
    batch = ppg.PolicyBatch(
        observation=array(0.0), action=jnp.zeros((1, 1), jnp.int32), weight=array(1.0), advantage=array(advantage),
        behavior_log_prob=array(np.log(0.5 / ratio)), target_value=array(5.0),
    )  # fmt: skip
    total, metrics = ppg.policy_loss(
        config,
        fixed_network(),
        SurrogateCoefficients(config.clip_epsilon, config.entropy_coef),
        outputs_of([0.0, 0.0], 2.0, -7.0),
        batch,
    )
    assert float(metrics["loss/policy"]) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["loss/value"]) == pytest.approx(0.5 * 9.0)
    assert float(total) == pytest.approx(expected + 0.7 * 4.5 - 0.3 * np.log(2.0), rel=1e-5)
    assert float(metrics["policy/clip_fraction"]) == float(abs(ratio - 1.0) > 0.2)


def test_auxiliary_loss_is_both_value_errors_plus_the_kl():
    config = dataclasses.replace(CONFIG, clone_coef=3.0)
    array = partial(jnp.full, (1, 1), dtype=jnp.float32)
    batch = ppg.AuxiliaryBatch(array(0.0), jnp.log(jnp.array([[[0.8, 0.2]]])), array(5.0), array(1.0))
    outputs = outputs_of([np.log(0.5), np.log(0.5)], 3.0, 1.0)
    total, metrics = ppg.auxiliary_loss(config, fixed_network(), outputs, batch)
    clone = 0.8 * np.log(0.8 / 0.5) + 0.2 * np.log(0.2 / 0.5)  # old || new: the other way round it would be 0.223
    assert float(metrics["auxiliary/distillation"]) == pytest.approx(8.0)
    assert float(metrics["auxiliary/value"]) == pytest.approx(2.0)
    assert float(metrics["auxiliary/clone_kl"]) == pytest.approx(clone, rel=1e-5)
    assert float(total) == pytest.approx(8.0 + 3.0 * clone + 2.0, rel=1e-5)


def expected_log_ratio(one, other, log_prob, grid):
    """KL by its definition, as a sum over a grid of values: E_one[log one - log other]."""
    step = grid[1] - grid[0] if grid.dtype.kind == "f" else 1.0
    p, q = log_prob(one, grid), log_prob(other, grid)
    return float(np.sum(np.exp(p) * (p - q)) * step)


def test_divergences_are_expected_log_ratios():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 4)).astype(np.float32) * 0.5
    for squash in (False, True):
        spec = EnvSpec("box", ArraySpec((2,), "float32"), ArraySpec((1,), "float32", -2.0, 2.0))
        distribution = distribution_for(spec, squash)
        grid = np.linspace(-2.0 + 1e-5, 2.0 - 1e-5, 40_001) if squash else np.linspace(-15.0, 15.0, 40_001)

        def log_prob(parameters, x, distribution=distribution):
            return np.asarray(distribution.log_prob(jnp.broadcast_to(parameters, (len(x), 2)), x[:, None]), np.float64)

        by_definition = expected_log_ratio(one[:2], other[:2], log_prob, grid)
        assert float(policy_divergence(spec)(one[:2], other[:2])) == pytest.approx(by_definition, rel=2e-2)


def test_divergences_of_parts_add_up_without_illegal_actions():
    def kl(p, q):
        p, q = np.exp(p) / np.exp(p).sum(), np.exp(q) / np.exp(q).sum()
        return (p * np.log(p / q)).sum()

    leaves = {"many": MultiDiscreteSpec((2,), (2, 3), (0, 0)), "one": DiscreteSpec(3)}
    spec = EnvSpec("several", ArraySpec((2,), "float32"), leaves)
    one, other = np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32)
    expected = [kl(a[:2], b[:2]) + kl(a[2:5], b[2:5]) + kl(a[5:7], b[5:7]) for a, b in zip(one, other, strict=True)]
    one[:, 7] = other[:, 7] = ILLEGAL
    divergence = policy_divergence(spec)
    np.testing.assert_allclose(divergence(one, other), expected, rtol=1e-4)
    assert np.isfinite(jax.grad(lambda x: divergence(one, x).sum())(jnp.asarray(other))).all()
    mixed = EnvSpec("mixed", ArraySpec((2,), "float32"), {"a": ArraySpec((2,), "float32"), "b": DiscreteSpec(2)})
    means = np.array([1.0, 2.0, 0.0, 0.0, 5.0, 5.0], np.float32)
    zeros = np.zeros(6, np.float32)
    assert float(policy_divergence(mixed)(means, zeros)) == pytest.approx(0.5 * (1.0 + 4.0))


def test_the_auxiliary_phase_runs_after_every_second_update_only(updated):
    states, metrics = updated
    counts = [num_steps(state.opt_state["auxiliary"]) for state in states]
    assert counts == [0, 0, CONFIG.num_auxiliary_steps, CONFIG.num_auxiliary_steps]
    assert [num_steps(state.opt_state["policy"]) for state in states] == [0, 2, 4, 6]
    reported = [float(found["auxiliary/distillation"]) for found in metrics]
    assert reported[0] == 0.0
    assert reported[1] == reported[2] > 0.0


def test_only_the_auxiliary_phase_trains_the_auxiliary_value(updated):
    states, _ = updated
    head = [state.params["actor"]["params"]["auxiliary"]["Dense_0"]["kernel"] for state in states]
    np.testing.assert_array_equal(head[0], head[1])
    assert not np.array_equal(head[1], head[2])
    np.testing.assert_array_equal(head[2], head[3])


def test_the_memory_keeps_each_trajectory_in_its_place(updated):
    states, _ = updated
    data = [trajectory(number) for number in range(3)]
    for after, places in ((1, (0, None)), (2, (0, 1)), (3, (2, 1))):
        memory = states[after].extra["memory"]
        for place, number in enumerate(places):
            at = slice(place * STEPS, (place + 1) * STEPS)
            if number is None:
                assert not np.asarray(memory.valid[at]).any()
                continue
            np.testing.assert_array_equal(memory.observation[at], data[number].observation[:-1])
            np.testing.assert_array_equal(memory.valid[at], data[number].valid)
            batch = ppg.make_batch(CONFIG, PHASIC, states[number].params, data[number])
            np.testing.assert_allclose(memory.target_value[at], batch.target_value, rtol=1e-5, atol=1e-5)


def test_ppg_advantages_match_recursion():
    data, params = trajectory(p_end=0.4), jax.jit(PHASIC.net.init)(jax.random.key(0))
    value = np.asarray(PHASIC.net.value(params, data.observation), np.float64)
    expected, following = np.zeros((STEPS, ROWS)), np.zeros(ROWS)
    for t in reversed(range(STEPS)):
        goes_on = ~data.terminated[t]
        delta = data.reward[t] + CONFIG.discount * goes_on * value[t + 1] - value[t]
        following = data.valid[t] * (delta + CONFIG.discount * CONFIG.gae_lambda * goes_on * following)
        expected[t] = following
    batch = ppg.make_batch(CONFIG, PHASIC, params, data)
    np.testing.assert_allclose(batch.advantage, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.target_value, expected + value[:-1], rtol=1e-4, atol=1e-4)


def full_memory():
    rng, shape = np.random.default_rng(5), (2 * STEPS, ROWS)
    observation = rng.normal(size=(*shape, 3)).astype(np.float32)
    target = 2.0 + 3.0 * observation[..., 0]
    return PhaseMemory(
        jnp.asarray(observation), jnp.asarray(target), jnp.ones(shape, bool), jnp.arange(2, dtype=jnp.int32), {}
    )


def phase(**changes):
    """Mean KL from the policy before, and the auxiliary value's squared error, before and after an auxiliary phase."""
    config = dataclasses.replace(CONFIG, num_auxiliary_epochs=20, **changes)
    memory, optimizer = full_memory(), optax.adam(config.auxiliary_learning_rate)
    params = jax.jit(PHASIC.net.init)(jax.random.key(2))
    # A policy that depends on the torso's features, so that it moves with them.
    actor = params["actor"]["params"]
    actor["head"] = jax.tree.map(lambda leaf: 200.0 * leaf, actor["head"])
    run = jax.jit(partial(ppg.auxiliary_phase, config, PHASIC, optimizer))
    begin = Progress(params, optimizer.init(params), jnp.int32(0), jnp.int32(0))
    progress, metrics = run(begin, memory, jax.random.key(3))
    old, new = (PHASIC.outputs(each, memory.observation) for each in (params, progress.params))
    kl = float(jnp.mean(PHASIC.divergence(old.policy, new.policy)))
    errors = [float(jnp.mean(jnp.square(out.auxiliary - memory.target_value))) for out in (old, new)]
    return kl, errors, metrics


@pytest.mark.slow  # to compile
def test_a_heavy_clone_term_keeps_the_policy():
    free, (before, after), _ = phase(clone_coef=0.0)
    assert after < 0.5 * before
    kept, (before, after), _ = phase(clone_coef=1e4)
    assert kept < 1e-3 * free
    assert after < 0.7 * before


def test_the_old_policy_is_that_at_the_start_of_the_phase():
    _, _, metrics = phase(auxiliary_learning_rate=1e-12)
    assert float(metrics["auxiliary/clone_kl"]) == pytest.approx(0.0, abs=1e-6)


def test_every_epoch_takes_every_step_of_time_once():
    order = shuffled_minibatches(jax.random.key(0), 12, 3, 4)
    assert order.shape == (12, 3)
    for epoch in np.asarray(order).reshape(3, 12):
        assert sorted(epoch) == list(range(12))
    assert len({tuple(epoch) for epoch in np.asarray(order).reshape(3, 12).tolist()}) == 3


def test_reset_rows_do_not_move_the_parameters_in_either_phase(agent):
    states = []
    for is_junk in (False, True):
        state = agent.init(jax.random.key(1))
        for number in range(2):
            data = trajectory(number, p_end=0.4)
            assert not data.valid.all()
            if is_junk:
                seen = np.where(data.valid[..., None], data.observation[:-1], 1e6)
                log_prob = np.where(data.valid, data.extras["behavior_log_prob"], -50.0).astype(np.float32)
                data = dataclasses.replace(
                    data,
                    observation=np.concatenate([seen, data.observation[-1:]]).astype(np.float32),
                    action=np.where(data.valid, data.action, 1 - data.action),
                    extras={"behavior_log_prob": log_prob},
                )
            state, _ = agent.update(state, data, jax.random.key(number))
        states.append(state)
    chex.assert_trees_all_equal(states[0].params, states[1].params)


def test_update_returns_the_structure_it_takes_and_compiles_once(agent, updated):
    states, metrics = updated
    for state in states:
        chex.assert_trees_all_equal_shapes_and_dtypes(state, states[0])
    assert agent.update._cache_size() == 1
    assert int(states[-1].num_updates) == 3
    assert all(value.dtype == jnp.float32 and value.shape == () for value in metrics[0].values())
    assert all(found.keys() == metrics[0].keys() for found in metrics)


@pytest.mark.slow  # to compile
def test_ppg_phases_on_four_devices_match_one():
    made = ppg.make_ppg(CONFIG, SPEC, NETWORK)
    ended = []
    for count in (1, 4):
        mesh = LearnerMesh(jax.local_devices()[:count])
        update, state = mesh.jit_update(made, jax.random.key(5)), mesh.place_state(made.init(jax.random.key(1)))
        for number in range(2):
            state, metrics = update(state, jax.device_put(trajectory(number), mesh.rows))
        ended.append(jax.device_get((state, metrics)))
    chex.assert_trees_all_close(*ended, rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # to compile
def test_a_linear_schedule_ends_both_phases_at_zero():
    config = dataclasses.replace(CONFIG, learning_rate_schedule=ScheduleConfig("linear"), total_updates=4)
    made = ppg.make_ppg(config, SPEC, NETWORK)
    state, rates = made.init(jax.random.key(0)), []
    update = jax.jit(made.update)
    for number in range(6):
        before = state
        state, metrics = update(state, trajectory(number), jax.random.key(number))
        rates.append(float(metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [5e-3, 3.75e-3, 2.5e-3, 1.25e-3, 0.0, 0.0], atol=1e-9)
    assert num_steps(state.opt_state["auxiliary"]) == 3 * CONFIG.num_auxiliary_steps
    chex.assert_trees_all_equal(before.params, state.params)


@pytest.mark.parametrize("is_normalized", [False, True])
def test_the_memory_has_structure_and_types_of_the_observation(is_normalized):
    leaves = {"arm": (ArraySpec((2,), "float32"),), "camera": ArraySpec((3, 3, 1), "uint8"), "key": DiscreteSpec(4)}
    spec = EnvSpec("robot", {**leaves, "counts": ArraySpec((2,), "int16")}, DiscreteSpec(2))
    config = dataclasses.replace(CONFIG, normalization=NormalizationConfig(observations=is_normalized))
    agent = ppg.make_ppg(config, spec, NETWORK)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    kept = state.extra["memory"].observation
    dtypes = {"arm": ("float32",), "camera": "uint8", "key": "int32", "counts": "float32" if is_normalized else "int16"}
    assert jax.tree.map(lambda leaf: str(leaf.dtype), kept) == dtypes
    assert all(leaf.shape[:2] == (2 * STEPS, ROWS) for leaf in jax.tree.leaves(kept))
    seen = jax.tree.map(lambda leaf: jnp.zeros((STEPS + 1, ROWS, *leaf.shape), leaf.dtype), spec.observation)
    batch = dataclasses.replace(trajectory(), observation=seen)
    assert jax.eval_shape(agent.update, state, batch, jax.random.key(0))[0].extra["memory"] == state.extra["memory"]


def test_trajectories_of_another_size_are_rejected():
    made = ppg.make_ppg(dataclasses.replace(CONFIG, num_rows=16), SPEC, NETWORK)
    with pytest.raises(
        UserError, match=r"4 x 16 steps, got one of 4 x 8: set agent.rollout_length=4 and agent.num_rows=8"
    ):
        jax.eval_shape(made.update, jax.eval_shape(made.init, jax.random.key(0)), trajectory(), jax.random.key(0))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (NetworkConfig(core="lstm"), "expected network.core 'none', got 'lstm'; use it, or PPO"),
        (NetworkConfig(shared_torso=True), "expected network.shared_torso False or None, got True"),
    ],
)
def test_networks_with_memory_or_shared_torso_are_rejected(network, message):
    with pytest.raises(UserError, match=message):
        ppg.make_ppg(CONFIG, SPEC, network)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_policy_phases": 0}, "num_policy_phases must be at least 1: got 0"),
        ({"discount": 1.1}, "discount must lie in"),
        ({"auxiliary_learning_rate": 0.0}, "auxiliary_learning_rate must be positive"),
        ({"clone_coef": -1.0}, "clone_coef must not be negative"),
        ({"minibatch_axis": "row"}, "minibatch_axis must be one of time, rows: got 'row'"),
    ],
)
def test_hyper_parameters_out_of_range_are_rejected(change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_minibatches_divide_the_trajectories_of_the_run():
    with pytest.raises(UserError, match="num_auxiliary_minibatches must divide rollout_length: got 3 and 4"):
        ppg.make_ppg(dataclasses.replace(CONFIG, num_auxiliary_minibatches=3), SPEC, NETWORK)
    sizes = ppg.PPGConfig(num_minibatches=5, num_auxiliary_minibatches=8)  # divide 40, and not the default of 32
    assert fill_sizes(sizes, 10, 40, 16).rollout_length == 40


def test_a_batch_of_ppg_members_skips_auxiliary_phases():
    made = ppg.make_ppg(CONFIG, SPEC, NETWORK)
    states = jax.eval_shape(jax.vmap(made.init), jax.random.split(jax.random.key(0), 2))
    program = jax.make_jaxpr(jax.vmap(made.update, in_axes=(0, None, None)))(states, trajectory(), jax.random.key(0))
    assert any(equation.primitive.name == "cond" for equation in program.eqns)  # `vmap` makes a choice of another one


def test_ppg_minibatches_of_one_step_are_rejected():
    config = dataclasses.replace(CONFIG, num_rows=1, num_minibatches=STEPS)
    with pytest.raises(UserError, match="at least 2 steps"):
        ppg.make_ppg(config, SPEC, NETWORK)
    ppg.make_ppg(dataclasses.replace(config, normalize_advantage=False), SPEC, NETWORK)


def test_no_gradient_steps_are_offered_and_configs_are_read_back():
    assert ppg.make_ppg(CONFIG, SPEC, NETWORK).gradient_steps is None
    assert from_json(ppg.PPGConfig, to_json(CONFIG)) == CONFIG
