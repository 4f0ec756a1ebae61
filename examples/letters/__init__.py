"""A language model that writes letter by letter, trained here on the documents of this project."""
