"""Which sites of a graph cost accuracy, and which few must stay float."""
