"""The names of the models that every server has."""

MINI_MODEL = "batuta-mini"
ULTRA_MODEL = "batuta-ultra"
