"""The planner: predicts the time of a step of every exchange from measured constants, and says which to take."""
