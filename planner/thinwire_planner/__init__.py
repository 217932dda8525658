"""The planner: predicts from measured constants how long every exchange takes to the same loss, and says which to
take."""
