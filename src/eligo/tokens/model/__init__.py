"""Learned modules: token merger, layer pruners, discriminator."""
