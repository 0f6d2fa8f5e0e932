"""A service with three properties and a command. Run it, then: tensorpool service call counter count"""

import tensorpool as tp


class Counter(tp.Service, name="counter"):
    step = tp.Property(1, minimum=1, maximum=100, doc="How far one call counts.")
    label = tp.Property("frames", doc="What is counted.")
    total = tp.Property(0, writable=False, doc="Where it stands.")

    @tp.command
    def count(self, times: int = 1) -> int:
        """Counts on and gives the total."""
        self.total += self.step * times
        return self.total


with tp.open() as ctx:
    ctx.run(Counter())
