"""The embedded server: models behind KServe v2 (Open Inference Protocol) over HTTP and gRPC, as Triton answers it."""
