"""Settings that a learner sends to the processes on other machines."""

import pickle
import socket
from types import SimpleNamespace

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.setup import load_setup
from jaxsrl.collect.acting_agent import read_jax_settings
from jaxsrl.machine.provenance import read_code


def sent(**changed):
    return pickle.dumps(SimpleNamespace(code={**read_code(), **changed}, jax_settings=read_jax_settings()))


def test_settings_of_a_learner_with_other_code_are_rejected():
    assert load_setup(sent()).code == read_code()
    for name in ("source", "python", "jax", "numpy"):
        with pytest.raises(UserError, match=f"{name}: 'other' -> '{read_code()[name]}'; install") as error:
            load_setup(sent(**{name: "other"}))
        assert str(error.value).startswith(f"the code on {socket.gethostname()} is not that of the learner")
        assert "\n" not in str(error.value)
