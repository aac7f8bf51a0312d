"""What a call costs: cases, their interleaved measurement, and how results are shown.

`python -m jaxmarshal bench` and the pytest-benchmark suite in `bench/` share the cases. Importing
this package initialises nothing; a case is built when it is measured.
"""
