"""Plans: a guard over the arguments of a call, and the executable that it leads to."""
