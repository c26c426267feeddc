"""Code that runs in tasks: the three passes pack, group function and unpack."""
