from jaxsrl.machine.compiler_options import compiler_options


def test_only_programs_of_cpus_are_compiled_in_less_time(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    assert compiler_options("cpu") == {"xla_backend_optimization_level": 2}
    assert compiler_options("gpu") is None


def test_a_level_of_the_user_is_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert compiler_options("cpu") is None
