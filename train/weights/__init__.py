"""Weights brought into a form that one scale per tensor suffices for."""
