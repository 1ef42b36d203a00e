"""The parts of the console that act: the sampler, the accounts, the audit log."""
