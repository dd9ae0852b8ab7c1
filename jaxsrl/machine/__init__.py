"""What this machine has, and how jax is set up on it: devices, CPUs, idle states, signals."""
