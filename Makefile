# Every target makes the virtual environment first if it is missing; only python3 (3.11 or newer) and make are needed.
PYTHON ?= python3
BIN := .venv/bin

# Four processes, on two cores too: tests often wait. An idle process takes tests from the end of another's list; until then tests of
# one file share what they compile.
SIDE_BY_SIDE := $(BIN)/python -m pytest -n 4 --dist worksteal
# Most of the tests' time is compilation. tests/conftest.py compiles without optimization for all but these, which run the programs
# that users run, as all tests do in test-all.
OPTIMIZED := $(patsubst %,tests/integration/test_%.py,cli own_plan)

# Tests that need the versions of packages that pyproject.toml allows rather than those of requirements.lock.
VERSION_TESTS := tests/unit/envpool_bridge tests/unit/agents tests/unit/jaxsrl/checkpoints tests/unit/jaxsrl/config \
	tests/unit/jaxsrl/learner tests/unit/jaxsrl/metrics tests/unit/jaxsrl/plots tests/unit/jaxsrl/test_experiment.py \
	$(patsubst %,tests/integration/test_%.py,errors every_plan vector_env view)

.PHONY: train test test-all test-lowest test-newest test-sb3 test-suites check chaos mutants docs bench gpu lock clean
train: .venv/installed ; $(BIN)/python experiments/ppo_cartpole.py
# Every process that a test starts would compile all modules anew where the environment forbids to write bytecode.
test test-all chaos mutants: export PYTHONDONTWRITEBYTECODE =
test: .venv/installed
	@status=0; \
	JAXSRL_TEST_COMPILE=quick $(SIDE_BY_SIDE) tests $(addprefix --ignore=,$(OPTIMIZED)) || status=1; \
	$(SIDE_BY_SIDE) $(OPTIMIZED) || status=1; \
	exit $$status
test-all: .venv/installed ; $(BIN)/python -m pytest -m "not gpu" --timeout 1200
test-lowest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-lowest test-newest:
	$(PYTHON) -m venv --clear .venv-versions && .venv-versions/bin/pip install -q uv
	.venv-versions/bin/uv pip install -q --python .venv-versions/bin/python --resolution $(RESOLUTION) \
		-e './envpool_bridge[atari,minigrid,mujoco,pettingzoo]' -e '.[test]'
	JAXSRL_TEST_COMPILE=quick .venv-versions/bin/python -m pytest $(VERSION_TESTS)
# Suites that requirements.lock lacks, in groups that install together: gymnax pins gymnasium < 1.4, overcooked has an OpenCV of its own.
SUITES := box2d,crafter,envpool,vizdoom brax,gymnax,jumanji,smax overcooked
SUITE_TESTS := tests/contract/test_env_rows.py $(patsubst %,tests/integration/test_%.py,multi_agent native_vector_rows) \
	$(patsubst %,tests/unit/envpool_bridge/envs/%.py,suites/test_crafter suites/test_multi_agent_errors suites/test_multi_agent_suites \
	suites/test_vizdoom test_native_envpool) $(patsubst %,tests/unit/jaxsrl/envs/test_%.py,brax gymnax jumanji)
test-suites:
	@status=0; for suites in $(SUITES); do \
		echo "$$suites"; $(PYTHON) -m venv --clear .venv-versions && .venv-versions/bin/pip install -q uv && \
		.venv-versions/bin/uv pip install -q --python .venv-versions/bin/python -e ./envpool_bridge -e ".[test,$$suites]" && \
		JAXSRL_TEST_COMPILE=quick .venv-versions/bin/python -m pytest -rs $(SUITE_TESTS) || status=1; \
	done; exit $$status
# stable-baselines3 needs PyTorch, so it has an environment of its own, without jax.
test-sb3:
	$(PYTHON) -m venv --clear .venv-versions && .venv-versions/bin/pip install -q './envpool_bridge[sb3]' pytest
	.venv-versions/bin/python -m pytest -c /dev/null --noconftest tests/integration/test_sb3_vec_env.py
check: .venv/installed ; $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/python tests/lint/sizes.py && $(BIN)/python tests/lint/language.py && $(BIN)/lint-imports && $(BIN)/pyright
chaos: .venv/installed ; $(BIN)/python -m pytest tests/chaos -m "not gpu" -s --timeout 3600
mutants: .venv/installed ; $(BIN)/python tests/chaos/mutants/run.py
docs: .venv/installed ; NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site
bench: .venv/installed ; $(BIN)/jaxsrl bench pool && $(BIN)/jaxsrl bench train
gpu: .venv/installed ; $(BIN)/jaxsrl bench gpu
lock: ; $(PYTHON) -m venv --clear .venv-lock && .venv-lock/bin/pip install -q ./envpool_bridge '.[dev]' && .venv-lock/bin/pip freeze --exclude jaxsrl --exclude envpool-bridge > requirements.lock && rm -rf .venv-lock
clean: ; rm -rf .venv .venv-lock .venv-versions build *.egg-info .pytest_cache .ruff_cache

.venv/installed: requirements.lock pyproject.toml envpool_bridge/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxsrl needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -e ./envpool_bridge -e .
	@touch $@
