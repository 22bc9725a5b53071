"""The parts that are trained: merger, layer pruners, discriminator."""
