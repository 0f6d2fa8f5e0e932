"""The supervisor: rules over the system model, and the orders that carry them out (wire §10.5)."""
