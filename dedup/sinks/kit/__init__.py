"""The sink kit: a user's own sink publishes each micro-batch once."""
