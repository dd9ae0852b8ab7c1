"""Experience replay: storage, sampling and schedule, on devices and on the host."""
