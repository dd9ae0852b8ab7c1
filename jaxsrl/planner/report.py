"""`jaxsrl plan EXPERIMENT --simulate`: calibration, comparison with measurements, and prediction."""

from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.experiment import Experiment
from jaxsrl.planner.calibration import load_calibration
from jaxsrl.planner.measure import measure
from jaxsrl.planner.predict import MSRL, SRL, Cluster, predict
from jaxsrl.planner.validate import compare, fit

ACT_ROWS = (8, 32, 128)
UPDATE_ROWS = (64, 128)
PREDICTION = (
    "predictions of a simulation, not measurements: environment hosts like this machine's cores, each acting for its rows; updates "
    "at the assumed operations per second; no failures and no other traffic on the network (docs/operations/simulation.md)"
)


def simulate_experiment(
    experiment: Experiment,
    name: str,
    file: Path,
    calibrate: bool,
    check: bool,
    cluster: Cluster | None,
) -> dict[str, Any]:
    """Returns the predictions, or the comparison, as JSON data; every list is a table.

    Args:
        experiment: to simulate.
        name: of the experiment.
        file: of the calibration.
        calibrate: measure, and write the file.
        check: compare small runs on this machine with what is predicted for them.
        cluster: to predict for; None for those of the papers.

    Raises:
        UserError: there is no calibration, or it is of another environment.
    """
    if calibrate:
        fit(measure(experiment, name, ACT_ROWS, UPDATE_ROWS), experiment).save(file)
    elif not file.exists():
        raise UserError(f"there is no calibration {file}: make it with --calibrate, on an otherwise idle machine")
    calibration = load_calibration(file)
    _, _, spec = experiment.build()
    if calibration.env_id != spec.env_id:
        raise UserError(
            f"{file} was measured with {calibration.env_id}, but {name} has {spec.env_id}: use --calibrate, or "
            f"another --calibration FILE"
        )
    report: dict[str, Any] = {"calibration": str(file), "cpu": calibration.cpu, "env_id": calibration.env_id}
    if check:
        report["measured against predicted"] = compare(calibration, experiment)
        return report
    clusters = [SRL, MSRL] if cluster is None else [cluster]
    report["note"] = PREDICTION
    report["predicted"] = [predict(calibration, cluster) for cluster in clusters]
    return report
