"""Looking after a catalog: what it holds, what is damaged, and how a query goes on."""
