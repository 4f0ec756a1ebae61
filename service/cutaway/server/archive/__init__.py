"""Model archives (``.mar``): reading and building them."""
