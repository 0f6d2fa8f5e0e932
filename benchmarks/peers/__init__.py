"""The measured libraries: TensorPool and others, each used by the fastest means of its Python API."""
