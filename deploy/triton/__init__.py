"""Model repositories for Triton: written, checked by rules, and tried with the real server."""
