"""What a plan would do, before it runs: calibration, simulation, comparison."""
