"""From a circuit to a number: run it with every other edge ablated, and measure what is left."""
