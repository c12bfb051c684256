"""Training: enforcement of the rules during training, the loop, checkpoints."""
