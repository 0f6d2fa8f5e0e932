"""A service with three properties and a command. Run it, then: tensorpool service call counter count"""

import tensorpool as tp


class Counter(tp.Service, name="counter"):
    step = tp.Property(1, minimum=1, maximum=100, doc="Added to the total by each count.")
    label = tp.Property("frames", doc="Name of the counted items.")
    total = tp.Property(0, writable=False, doc="The count so far.")

    @tp.command
    def count(self, times: int = 1) -> int:
        """Adds to the total and returns it."""
        self.total += self.step * times
        return self.total


with tp.open() as ctx:
    ctx.run(Counter())
