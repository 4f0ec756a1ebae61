"""How results look: pictures and charts as PNG and SVG, for pages and notebooks."""
