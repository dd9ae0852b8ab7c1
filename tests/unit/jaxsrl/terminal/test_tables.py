"""Results on the terminal: every kind of JSON value, in both forms."""

import json

import pytest

from jaxsrl.terminal.tables import describe_name, format_value, print_tables

RESULT = {
    "env_id": "CartPole-v1 [jax]",
    "num_envs": 4096,
    "hidden_sizes": [64, 64],
    "latency_ms": 0.25,
    "slots_bytes": 1_310_720,
    "awake": False,
    "limit": None,
    "baselines": {"flat_ppo": "a program", "rejax": "another"},
    "rounds": {"pool": [float(number) for number in range(40)]},
    "sizes": [
        {"num_envs": 64, "env_steps_per_second": {"jaxsrl": 123456.7, "flat_ppo": 61728.4}, "ratio": 2.0},
        {"num_envs": 512, "env_steps_per_second": {"jaxsrl": 9.0}, "profile": {"main": 0.125}},
    ],
    "nothing": [],
}


def test_json_is_one_line_that_holds_everything(capsys):
    print_tables(RESULT, True, "title")
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == RESULT


def test_the_plain_form_shows_every_value_in_words_with_units(capsys):
    print_tables(RESULT, False, "runs/[red]x")
    printed = capsys.readouterr().out
    for text in (
        *("runs/[red]x", "CartPole-v1 [jax]", "environments", "4,096", "64, 64", "latency (ms)", "slots (bytes)"),
        *("1,310,720", "flat ppo: a program", "pool: 40 values, 0 to 39.00", "sizes", "env steps per second"),
        *("jaxsrl: 123,457", "flat ppo: 61,728", "main: 0.1250"),
    ):
        assert text in printed, printed
    assert not set("{}'_") & set(printed)


def test_a_result_that_is_rows_alone_is_one_table_with_its_title(capsys):
    print_tables({"checkpoints": [{"update": 7}]}, False, "evaluation of x")
    printed = capsys.readouterr().out
    assert "evaluation of x" in printed
    assert "checkpoints" not in printed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (True, "yes"),
        (0, "0"),
        (0.0, "0"),
        (1234.5, "1,234"),
        (1e-5, "1e-05"),
    ],
)
def test_a_value_is_formatted_for_people(value, text):
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("env_steps_per_second", "env steps per second"),
        ("guarded_cpu_us_per_env_step", "guarded cpu (microseconds per env step)"),
        ("atari_slot_milliseconds", "atari slot (ms)"),
        ("num_epochs", "epochs"),
    ],
)
def test_a_name_is_words_and_a_unit(name, words):
    assert describe_name(name) == words
