"""`make demo-kafka`, `demo-postgres` and `demo-mysql`: exactly once on real servers, under kills.

They are commands of this repository and no part of what is installed, because their servers come
from the tests.
"""
