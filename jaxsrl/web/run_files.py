"""Files of one run as JSON data for the page. Files may be missing, partially written or of another version."""

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any

from jaxsrl.checkpoints.run_directory import CONFIG, PLAN
from jaxsrl.metrics.evaluations import evaluation_columns, read_evaluations
from jaxsrl.metrics.record_file import ELAPSED, SPEED, RecordFile
from jaxsrl.plan.drawing.svg import plan_as_svg
from jaxsrl.plan.plan import plan_from_json
from jaxsrl.runs.control import control_state
from jaxsrl.runs.summary import RECORDS, as_dict, last_log_lines, newest_change, summarize_records

_LOG_BYTES = 64 * 1024


class RunFiles:
    """Directory of one run. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = RecordFile(path / RECORDS)
        self._lock = threading.Lock()
        self._read: dict[str, tuple[int, Any]] = {}  # by name: modification time, content

    def summary(self, name: str) -> dict[str, Any]:
        """Returns the entry of the run list, from the records read so far; `name` is the run's name there."""
        config, records = self._json(CONFIG), self.records
        summary = dataclasses.asdict(summarize_records(self.path, name, config, records))
        return {
            **summary,
            "plan": summary["plan"] or str(self._json(PLAN).get("name") or ""),
            "frames": records.last("frames"),
            "elapsed_seconds": records.last(ELAPSED),
            "speed": records.last(SPEED),
            "changed": newest_change(self.path),
            "control": control_state(self.path),
        }

    def details(self) -> dict[str, Any]:
        """Returns configuration, environment, evaluation, videos and log."""
        config = self._json(CONFIG)
        return finite(
            {
                "path": str(self.path),
                "experiment": as_dict(config.get("experiment")),
                "env_spec": as_dict(config.get("env_spec")),
                "evaluation": self._json("eval.json"),
                "videos": self.videos(),
                "log": self.log_lines(),
                "unreadable": [name for name in (CONFIG, PLAN, "eval.json") if self._is_unreadable(name)],
            }
        )

    def rows_since(self, cursor: str) -> dict[str, Any]:
        """Returns the records after those of an earlier answer, and all evaluations as columns; None for what is not finite."""
        columns = evaluation_columns(read_evaluations(self.path), self.records)
        evaluations = {
            name: [value if math.isfinite(value) else None for value in column.tolist()]
            for name, column in columns.items()
        }
        return {**self.records.since(cursor), "evaluations": evaluations}

    def plan_svg(self) -> str | None:
        """Returns the drawing of the plan; None without a plan that this version can read."""
        try:
            return plan_as_svg(plan_from_json(self._json(PLAN)))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def videos(self) -> list[dict[str, Any]]:
        """Lists the *.mp4 files, here and one directory below, newest first: name, bytes, seconds since 1970."""
        videos: list[dict[str, Any]] = []
        for path in [*self.path.glob("*.mp4"), *self.path.glob("*/*.mp4")]:
            is_ours = path.resolve().is_relative_to(self.path.resolve())
            if is_ours and path.is_file() and not path.name.startswith("."):
                stat = path.stat()
                name = path.relative_to(self.path).as_posix()
                videos.append({"name": name, "bytes": stat.st_size, "changed": stat.st_mtime})
        return sorted(videos, key=lambda video: -video["changed"])

    def log_lines(self) -> list[str]:
        """Returns the last lines of the log."""
        return last_log_lines(self.path, _LOG_BYTES)[-400:]

    def _json(self, name: str) -> dict[str, Any]:
        """Returns the object of a JSON file; {} if it is missing or not a JSON object."""
        try:
            written = (self.path / name).stat().st_mtime_ns
            with self._lock:
                known = self._read.get(name)
                if known is None or known[0] != written:
                    known = (written, as_dict(json.loads((self.path / name).read_text())))
                    self._read[name] = known
            return known[1]
        except (OSError, ValueError, RecursionError):
            return {}

    def _is_unreadable(self, name: str) -> bool:
        return (self.path / name).exists() and not self._json(name)


def finite(value: Any) -> Any:
    """Returns JSON data with infinity and NaN, which JSON lacks, replaced by their names."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "infinity", -math.inf: "-infinity"}.get(value, "nan")
    return value
