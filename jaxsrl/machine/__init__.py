"""Resources of this machine, and the setup of jax on it: devices, CPUs, idle states, signals."""
