"""`jaxsrl export`."""

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from jaxsrl.terminal.progress import show_line


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the policy of a run as files that act without jaxsrl.

    Attributes:
        path: run directory, checkpoint directory, or a model of a run: RUN@best.
        out: new directory for the policy.
        to: "numpy" takes the most likely actions and needs numpy only; "jax" also samples, and needs jax.
        trust_env: import the modules that the checkpoint names, of its environment and its agent, which runs their code.
    """

    path: tyro.conf.Positional[Path]
    out: Path
    to: Literal["numpy", "jax"] = "numpy"
    trust_env: bool = False

    def run(self) -> int:
        """Exports and compares with the original."""
        from jaxsrl.evaluation.export.export import export_policy
        from jaxsrl.evaluation.load_agent import load_agent

        loaded = load_agent(self.path, trust_env=self.trust_env)
        for problem in loaded.problems:
            show_line(f"warning: damaged checkpoint skipped: {problem}")
        origin = {"checkpoint": str(loaded.checkpoint), "update": loaded.update}
        spec = loaded.source.spec()
        export_policy(loaded.agent, loaded.params, spec, self.out, to=self.to, origin=origin)
        print(f"{self.out}: the policy of {loaded.checkpoint}, compared with the original")  # noqa: T201
        return 0
