"""Other libraries that carry arrays between processes, each by the best its Python API has."""
