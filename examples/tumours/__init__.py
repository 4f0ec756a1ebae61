"""A table with 30 named features: is a tumour benign or malignant?"""
