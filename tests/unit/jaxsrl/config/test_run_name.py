"""Names of runs: equal for the same experiment, different for another, and plain everywhere."""

import dataclasses
import re
import shlex

import pytest

import jaxsrl
from agents.ppo import PPOConfig, make_ppo
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.config.run_name import run_name
from jaxsrl.envs.registry import made_from
from jaxsrl.experiment import Experiment, bound_experiment, load_experiment
from jaxsrl.many_seeds.members import member_configs
from jaxsrl.run_plan import run_path

NAMES = {
    "ppo_cartpole": "ppo_cartpole_seed0",
    "ppo_cartpole --run.total-env-steps 9 --plan serial --run.directory elsewhere": "ppo_cartpole_seed0",
    "ppo_cartpole --agent.learning-rate 3e-4 --run.seed 1": "ppo_cartpole_learning_rate=0.0003_seed1",
    "ppo_cartpole --env.id Acrobot-v1 --network.hidden-sizes 8 8": "ppo_cartpole_Acrobot-v1_hidden_sizes=8-8_seed0",
    "ppo_cartpole --agent.optimizer.epsilon 0.1": "ppo_cartpole_optimizer.epsilon=0.1_seed0",
    "ppo_cartpole --run.init-from runs/x@best": "ppo_cartpole_init_from=runs-x-best_seed0",
    "ppo_cartpole --run.name mine --run.num-envs 8": "mine",
    "ppo --env.id CartPole-v1": "ppo_CartPole-v1_seed0",
    "ppo --env.id Acrobot-v1 --env.kwargs.max_episode_steps 9": "ppo_Acrobot-v1_kwargs=max_episode_steps-9_seed0",
}


@pytest.mark.parametrize("line", NAMES)
def test_a_name_is_that_of_the_experiment_and_of_what_differs(line):
    name, *flags = shlex.split(line)
    assert load_experiment(find_experiment(name), flags).run.name == NAMES[line]


def test_seeds_have_the_names_of_single_runs():
    flags = ["--env.suite", "jax", "--run.num-envs", "8"]
    path, values = find_experiment("ppo_cartpole"), ["--run.seed-learning-rates", "1e-4", "0.02"]
    values += ["--run.seed-entropy-coefs", "0.1", "0.2"]
    many = load_experiment(path, [*flags, "--run.seeds", "2", "--run.seed", "3", *values])
    singles = [
        load_experiment(path, [*flags, "--run.seed", seed, "--agent.learning-rate", rate, "--agent.entropy-coef", coef])
        for seed, rate, coef in (("3", "1e-4", "0.1"), ("4", "0.02", "0.2"))
    ]
    assert [own.name for own in member_configs(many.run)] == [single.run.name for single in singles]


def test_a_long_name_ends_in_a_hash():
    names = [run_name(["ppo"], ["x" * 100, end], 12) for end in "ab"]
    assert names[0] != names[1]
    assert all(re.fullmatch(r"ppo_x{76}_[0-9a-f]{8}_seed12", name) for name in names)


def test_names_have_no_character_with_a_meaning():
    assert run_name(["ppo", "my_envs:Grid-v0"], ["a=b c/d@e"], None) == "ppo_my_envs-Grid-v0_a=b-c-d-e"


CHANGES = {
    "agent": {"learning_rate": 0.01},
    "network": {"hidden_sizes": (5,)},
    "env": {"kwargs": {"max_episode_steps": 9}},
    "run": {"rollout_length": 4},
}


def names_in_python(experiment):
    """Returns the names of `Experiment.train` and of `jaxsrl.train`."""
    agent, source, spec = experiment.build()
    made = make_ppo(experiment.agent, spec, experiment.network)
    own = bound_experiment(made, made_from(source), experiment.run)
    return {run_path(experiment.run, agent, spec, each).name for each in (experiment, own)}


@pytest.mark.parametrize("part", CHANGES)
def test_runs_from_python_with_other_settings_have_other_names(part):
    usual = Experiment(jaxsrl.EnvConfig("CartPole-v1"), PPOConfig())
    other = dataclasses.replace(usual, **{part: dataclasses.replace(getattr(usual, part), **CHANGES[part])})
    assert names_in_python(usual) == {"ppo_CartPole-v1_seed0"}
    assert len(names_in_python(other)) == 1
    assert names_in_python(other) != names_in_python(usual)
