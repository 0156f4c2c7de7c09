"""A retrofit: what it reads, what it does to the tensors, its settings, and the distillation itself."""
