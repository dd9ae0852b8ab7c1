"""Versioned parameters on their way from the learner to inference."""
