"""Encoders: MLP, Nature CNN, IMPALA ResNet, attention over entities, and their layers."""
