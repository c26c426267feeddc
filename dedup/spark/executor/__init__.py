"""What runs in tasks: pack, the group function, unpack."""
