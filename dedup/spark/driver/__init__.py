"""Code that runs on the driver: options, checks before the start, and the plan for the tasks."""
