"""The queue of recent trajectories."""
