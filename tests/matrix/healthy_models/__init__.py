"""Models in which nothing is wrong, of many kinds; more than half of them trained.

model      what a healthy model is, and how it is trained
data       the examples that they learn from
parts      chains and wirings of modules
vectors    perceptrons on tables of numbers
wirings    gates, experts, pairs, mixtures, functions of their own
images     networks on images and volumes
sequences  networks on signals and token ids
tables     networks on categories and numbers
recurrent  networks that run steps first, read packed sequences, or call a cell in a loop
siamese    networks that read two or three inputs through the same layers
graphs     networks on graphs
outputs    transformers of patches, detection, segmentation, outputs with structure
functional networks called by torch.func, with computed weights, or of few bits
operators  functions of one's own, complex numbers, experts for tokens
hard       models that are hard on floating point
"""
