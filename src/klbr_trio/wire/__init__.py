"""Bytes from outside to values and back: the one place that knows cattrs.

Decoding is strict: a string is not a number, a list is not a string, null is
absent, and every refusal names the field.
"""

from __future__ import annotations
