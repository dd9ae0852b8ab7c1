"""Transport of versioned parameters from the learner to inference."""
