"""Hostile input for every decoder: the inputs, the rules that must hold, and the drivers."""
