"""Populations from the files of their managers, and their pictures."""

import json
from xml.etree import ElementTree

import pytest

import jaxsrl.cli.main
from envpool_bridge.errors import UserError
from jaxsrl.plots.draw_population import draw_population
from jaxsrl.runs.population import find_populations, read_population
from tests.integration.view_runs import make_population


@pytest.mark.parametrize("kind", ["pbt", "psro", "league"])
def test_populations_are_found_and_read(tmp_path, kind):
    make_population(tmp_path / "a" / kind, kind)
    assert find_populations(tmp_path) == {f"a/{kind}": tmp_path / "a" / kind}
    assert find_populations(tmp_path / "a" / kind) == {kind: tmp_path / "a" / kind}
    assert find_populations(next((tmp_path / "a" / kind).glob("*0"))) == {}
    population = read_population(tmp_path / "a" / kind)
    assert population["kind"] == kind
    runs = {run["name"]: run for run in population["runs"]}
    assert set(runs) == {run.name for run in (tmp_path / "a" / kind).iterdir() if run.is_dir()}
    parents = {
        "pbt": [None, None, "round000_member01", "round000_member01"],
        "psro": [None, None],
        "league": [None, "round000_a0", None],
    }
    assert [run["parent"] for run in population["runs"]] == parents[kind]
    scores = {"pbt": [1.0, 9.0, 8.0, 9.5], "psro": [0.25, 0.75], "league": [-50.0, 150.0, -100.0]}
    assert [run["score"] for run in population["runs"]] == scores[kind]
    assert len(population["payoffs"]) == {"pbt": 0, "psro": 2, "league": 3}[kind]


@pytest.mark.parametrize("kind", ["pbt", "psro", "league"])
def test_pictures_have_the_panels_of_their_kind(tmp_path, capsys, kind):
    directory, out = make_population(tmp_path / kind, kind), tmp_path / "a.svg"
    jaxsrl.cli.main.main(["plot", "--population", str(directory), "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out) == {"out": str(out)}
    groups = [group.get("id") or "" for group in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}g")]
    panels = sum(name.startswith("axes_") for name in groups)
    assert panels == {"pbt": 3, "psro": 4, "league": 5}[kind]  # with the axes of color bars


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("population.json", "{}"),
        ("population.json", "[]"),
        ("population.json", '{"history": [[{"values": {}, "source": null, "score": "x"}]]}'),
        ("population.json", '{"history": [[{"values": 3, "source": null, "score": 1.0}]]}'),
        ("psro.json", '{"mixtures": {"a": 1}}'),
        ("league.json", '{"policies": [], "points": [], "ratings": [1.0], "errors": []}'),
    ],
)
def test_states_of_other_versions_are_rejected(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match="of another version of jaxsrl: expected the state of a population"):
        read_population(tmp_path)


def test_what_is_no_population_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"population\.json"):
        draw_population(tmp_path, tmp_path / "a.png")
    (tmp_path / "league.json").write_text(json.dumps({"policies": [], "points": [], "ratings": [], "errors": []}))
    with pytest.raises(UserError, match="no complete round yet"):
        draw_population(tmp_path, tmp_path / "a.png")
    with pytest.raises(UserError, match="give one of them"):
        jaxsrl.cli.main.parse(["plot", "--population", str(tmp_path), "--sweep", str(tmp_path)]).run()
