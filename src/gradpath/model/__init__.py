"""Models: one transformer implementation, and how checkpoints of many families are loaded into it."""
