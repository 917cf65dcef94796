"""Models on disk and in memory: checkpoints, tokenizers, the decoder."""
