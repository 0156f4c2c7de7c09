"""Models become quiet: attention replaced, norms and stored prefixes added, fresh models built."""
