"""How results look: in notebooks, as figures, and as tables of pandas and xarray. Pillow, matplotlib, pandas and xarray
are imported when they are used, not before."""
