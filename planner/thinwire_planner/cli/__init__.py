"""The command line of the planner: options and files in, table, JSON and plot out."""
