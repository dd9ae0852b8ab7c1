"""The patches of `make mutants` fit the code."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mutant_applies():
    patches = sorted((ROOT / "tests/chaos/mutants").glob("*.patch"))
    command = ["git", "apply", "--check", "--unsafe-paths", f"--directory={ROOT}"]
    done = [subprocess.run([*command, str(patch)], cwd="/", capture_output=True, check=False) for patch in patches]
    assert patches
    assert not {patch.name: ran.stderr for patch, ran in zip(patches, done, strict=True) if ran.returncode}
