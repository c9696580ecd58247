"""Plans as plain data: the steps of a model in order, each with its reason. Nothing runs here."""
