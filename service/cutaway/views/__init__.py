"""Views of results: pages for notebooks, figures, tables, and requests as programs."""
