"""gRPC over the same engine: package ``vllm``, service ``Generate``. Needs the extra octavo[grpc]."""
