"""Reports: a plan as rows, folds and totals, and their printers as text, HTML and JSON.

report.py   the data: immutable, and all that printers know
collect.py  the report of a plan
text.py     a report as text
page.py     a report as one HTML page that needs no network, style.py its style
"""
