"""The replay buffer in numpy, in host memory."""
