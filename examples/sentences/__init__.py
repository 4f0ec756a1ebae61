"""A real sentence encoder, all-MiniLM-L6-v2, packaged and served: a transformer that reads text."""
