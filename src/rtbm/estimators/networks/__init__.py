"""Networks of theta units and ordinary ones."""
