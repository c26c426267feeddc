"""Values that users and files give: durations, sizes, options and JSON, read and checked."""
