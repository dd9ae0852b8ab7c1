"""Training loop on the device: environments, policy and learner in one program."""
