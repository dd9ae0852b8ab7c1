"""What the files of one run say, as JSON data for the page. Every file may be missing, half written or of another version."""

import json
import math
import threading
from pathlib import Path
from typing import Any

from jaxsrl.plan.drawing.svg import plan_as_svg
from jaxsrl.plan.plan import plan_from_json
from jaxsrl.run_directory import CONFIG, PLAN
from jaxsrl.runs.records import ELAPSED, SPEED, RecordFile
from jaxsrl.runs.summary import RECORDS, last_log_lines, newest_change, summarize_records

_LOG_BYTES = 64 * 1024


class RunFiles:
    """One run's directory. Thread-safe.

    Attributes:
        path: of the directory.
        records: of its training.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.path = path
        self.records = RecordFile(path / RECORDS)
        self._lock = threading.Lock()
        self._read: dict[str, tuple[int, Any]] = {}  # by name: when the file was written, what it says

    def summary(self, name: str) -> dict[str, Any]:
        """What the list of runs shows of the records that are read; `name` is the run's there."""
        config, records = self._json(CONFIG), self.records
        found = summarize_records(self.path, name, config, records)
        run = _dict(_dict(config.get("experiment")).get("run"))
        return {
            "name": name,
            "state": found.state,
            "env": found.env,
            "agent": found.agent,
            "policy": found.policy or str(self._json(PLAN).get("policy") or ""),
            "seed": found.seed,
            "update": found.update,
            "total_updates": found.num_updates,
            "env_steps": found.env_steps,
            "total_env_steps": _number(run.get("env_steps")),
            "frames": records.last("frames"),
            "elapsed_seconds": records.last(ELAPSED),
            "speed": records.last(SPEED),
            "return": found.last_return,
            "best_return": found.best_return,
            "changed": newest_change(self.path),
        }

    def details(self) -> dict[str, Any]:
        """Configuration, environment, evaluation, videos and log."""
        config = self._json(CONFIG)
        return finite(
            {
                "path": str(self.path),
                "experiment": _dict(config.get("experiment")),
                "env_spec": _dict(config.get("env_spec")),
                "evaluation": self._json("eval.json"),
                "videos": self.videos(),
                "log": self.log_lines(),
                "unreadable": [name for name in (CONFIG, PLAN, "eval.json") if self._is_unreadable(name)],
            }
        )

    def plan_svg(self) -> str | None:
        """The drawing of its plan; None if there is no plan that this version can read."""
        try:
            return plan_as_svg(plan_from_json(self._json(PLAN)))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def videos(self) -> list[dict[str, Any]]:
        """Its *.mp4 files, here and one directory further down, the newest first: name, bytes, seconds since 1970."""
        found: list[dict[str, Any]] = []
        for path in [*self.path.glob("*.mp4"), *self.path.glob("*/*.mp4")]:
            is_ours = path.resolve().is_relative_to(self.path.resolve())
            if is_ours and path.is_file() and not path.name.startswith("."):
                stat = path.stat()
                name = path.relative_to(self.path).as_posix()
                found.append({"name": name, "bytes": stat.st_size, "changed": stat.st_mtime})
        return sorted(found, key=lambda video: -video["changed"])

    def log_lines(self) -> list[str]:
        """The end of its log."""
        return last_log_lines(self.path, _LOG_BYTES)[-400:]

    def _json(self, name: str) -> dict[str, Any]:
        """What a JSON file says; {} if it is not there or is no JSON object."""
        try:
            written = (self.path / name).stat().st_mtime_ns
            with self._lock:
                known = self._read.get(name)
                if known is None or known[0] != written:
                    known = (written, _dict(json.loads((self.path / name).read_text())))
                    self._read[name] = known
            return known[1]
        except (OSError, ValueError):
            return {}

    def _is_unreadable(self, name: str) -> bool:
        return (self.path / name).exists() and not self._json(name)


def finite(value: Any) -> Any:
    """JSON data without numbers that JSON lacks: infinity and NaN become their names."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "infinity", -math.inf: "-infinity"}.get(value, "nan")
    return value


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
