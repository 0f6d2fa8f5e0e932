"""Prints where the peak of the spectra of each batch is. Start it before or after the spectrometer."""

from contextlib import suppress

import tensorpool as tp

with tp.open() as ctx, ctx.consumer(10020) as spectra:
    with suppress(KeyboardInterrupt):
        for batch in spectra.batches(4096):  # what came since the last batch, as one array
            peak = batch.array.mean(axis=0).argmax()
            missing = int(batch.seqs[-1] - batch.seqs[0]) + 1 - len(batch)
            print(f"{len(batch)} spectra from {batch.seqs[0]}, {missing} missing: peak in channel {peak}")
    print(spectra.ledger())
