"""What a reader looks at: runs in, a figure or a table out, each one call, its numbers beside it as CSV."""
