"""What tests share: judges, hard points, builders of models and files, strategies, programs that tests start."""
