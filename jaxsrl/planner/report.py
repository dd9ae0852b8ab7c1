"""`jaxsrl plan EXPERIMENT --simulate`: calibration, comparison with measurements, and prediction."""

from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.experiment import Experiment
from jaxsrl.planner.calibration import load_calibration
from jaxsrl.planner.measure import measure
from jaxsrl.planner.predict import MSRL, SRL, Cluster, predict
from jaxsrl.planner.validate import compare, fit

SIMULATED_PLANS = ("single_learner_fine", "decoupled", "multiple_learners", "dedicated_environments")
"""Plans of environment workers, inference servers and learners that share one update."""

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
        experiment: Experiment to simulate.
        name: Name of the experiment.
        file: File of the calibration.
        calibrate: measure, and write the file.
        check: compare small runs on this machine with what is predicted for them.
        cluster: Cluster to predict for; None for those of the papers.

    Raises:
        UserError: If the plan is not simulated, there is no calibration, or it is of another experiment.
    """
    if experiment.run.plan not in SIMULATED_PLANS:
        raise UserError(
            f"the simulation is of environment workers with inference servers: expected --plan {', '.join(SIMULATED_PLANS)}, got "
            f"{experiment.run.plan}: use one of them with --simulate"
        )
    if calibrate:
        fit(measure(experiment, name, ACT_ROWS, UPDATE_ROWS), experiment).save(file)
    elif not file.exists():
        raise UserError(f"there is no calibration {file}: make it with --calibrate, on an otherwise idle machine")
    calibration = load_calibration(file)
    _, _, spec = experiment.build()
    measured = (calibration.experiment, calibration.env_id, calibration.rollout_length)
    wanted = (name, spec.env_id, experiment.run.rollout_length)
    if measured != wanted:
        raise UserError(
            f"{file} was measured with {_describe(*measured)}, but this is {_describe(*wanted)}: use --calibrate, or another "
            f"--calibration FILE"
        )
    report: dict[str, Any] = {"calibration": str(file), "cpu": calibration.cpu, "env_id": calibration.env_id}
    if check:
        report["measured against predicted"] = compare(calibration, experiment)
        return report
    clusters = [SRL, MSRL] if cluster is None else [cluster]
    report["note"] = PREDICTION
    report["predicted"] = [predict(calibration, cluster) for cluster in clusters]
    return report


def _describe(name: str, env_id: str, rollout_length: int) -> str:
    return f"{name} in {env_id} with --run.rollout-length {rollout_length}"
