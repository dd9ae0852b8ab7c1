"""Names of Ray's nodes while some of them die and join, with a list in place of Ray's."""

import types

from jaxsrl.cluster.ray import engine as module
from jaxsrl.cluster.ray.engine import RayEngine


def node(node_id, name="host"):
    return {"NodeID": node_id, "NodeName": name, "Alive": True, "Resources": {"CPU": 1.0}}


def test_nodes_keep_their_names_when_others_die(monkeypatch):
    nodes = [node("a"), node("b")]
    ray = types.SimpleNamespace(nodes=lambda: nodes)
    monkeypatch.setattr(module, "import_ray", lambda: ray)
    engine = RayEngine()
    assert [one.name for one in engine.nodes()] == ["host", "host#2"]
    nodes[0]["Alive"] = False
    assert [one.name for one in engine.nodes()] == ["host#2"]
    assert (engine.name_of("a"), engine.name_of("b")) == ("", "host#2")
    nodes.append(node("c"))
    assert {engine.name_of("b"), engine.name_of("c")} == {"host#2", "host"}
    nodes.append(node("d", "another"))
    nodes.reverse()
    assert [one.name for one in engine.nodes()] == [
        "another",
        "host#2",
        "host",
    ]  # in order of Ray's names, however it lists them
