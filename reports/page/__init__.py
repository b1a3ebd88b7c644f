"""report.html and its plots, from records and the verdict.

A page that cannot be drawn does not affect the verdict.
"""
