"""Sweeps over hyper-parameters: each trial is an ordinary run."""
