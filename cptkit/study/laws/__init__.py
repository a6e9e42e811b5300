"""Laws of loss: closed forms, fits, what is known of their constants, and forgetting. Arrays in, numbers out.

`closed_form` what a law says; `solver` and `scaling` the fit; `uncertainty` its intervals and tests; `power`
what a grid could show; `forgetting` the laws of replay. Nothing here knows a run or a figure.
"""
