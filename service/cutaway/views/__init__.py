"""How results look: notebook pages, figures, tables, programs."""
