"""Gymnasium's own tests of vector environments, of the installed version, with PoolVectorEnv in place of AsyncVectorEnv.

The tests are fetched when this test runs, and kept under build/. The source distribution on PyPI contains none of
them, so they come from the archive of the release's tag. JAXSRL_GYMNASIUM_SOURCE names a checkout to use instead.
"""

import io
import os
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    f"test_{name}"
    for name in ("vector_env", "async_vector_env", "autoreset_mode", "vector_env_info", "observation_mode")
]
NUM_TESTS = 310  # of version 1.4.0

_CAST = "actions are cast to the dtype of the space: the test's float64 becomes a float32, which time.sleep rejects"
_NO_SHUTDOWN = (
    "the exception's cause describes every failed row, in place of logged errors; no environment is shut down"
)
# docs/environments/pool.md counts them by reason.
DIFFERENT = {
    **{f"test_async_vector_env::test_step_timeout_async_vector_env[{shared}]": _CAST for shared in (True, False)},
    "test_async_vector_env::test_async_vector_subenv_error": _NO_SHUTDOWN,
}


def fetch_tests() -> Path:
    """Returns a directory that contains Gymnasium's `tests` package; skips the test if it cannot be had."""
    if given := os.environ.get("JAXSRL_GYMNASIUM_SOURCE"):
        return Path(given)
    release = version("gymnasium")
    target = ROOT / "build" / "gymnasium_tests" / release
    if not (target / "tests" / "vector").is_dir():
        url = f"https://codeload.github.com/Farama-Foundation/Gymnasium/tar.gz/refs/tags/v{release}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                data = response.read()
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            pytest.skip(f"{url} cannot be read ({error}): set JAXSRL_GYMNASIUM_SOURCE to a checkout of the release")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [member for member in archive.getmembers() if "/tests/" in member.name]
            for member in members:
                member.name = member.name.partition("/")[2]
            archive.extractall(target, members, filter="data")
    return target


def run_tests(source: Path, report: Path) -> dict[str, str]:
    """Runs Gymnasium's tests in a process; returns "passed", "failed" or "skipped" by "file::test"."""
    plugin = ROOT / "tests" / "support" / "gymnasium_conformance"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pool_for_async", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--rootdir={source}", "-c", os.devnull, f"--junitxml={report}"]
    command += [f"tests/vector/{name}.py" for name in FILES]
    environment = {**os.environ, "PYTHONPATH": f"{plugin}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert report.exists(), done.stdout + done.stderr
    results: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        results[f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"] = result
    return results


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_gymnasiums_own_tests_pass_with_the_pool(tmp_path):
    results = run_tests(fetch_tests(), tmp_path / "report.xml")
    if version("gymnasium") == "1.4.0":
        assert len(results) == NUM_TESTS
    failed = {name for name, result in results.items() if result == "failed"}
    assert failed == set(DIFFERENT)
    assert not [name for name, result in results.items() if result == "skipped"]
