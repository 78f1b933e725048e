"""What the papers and fmm's own contract say of errors, and the precise products that they are measured against."""
