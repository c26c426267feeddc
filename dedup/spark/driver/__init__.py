"""What runs on the driver: options, checks before the start, the plan, listener."""
