"""Objectives of training: the loss, the kind of labels, and the metrics that compare models."""
