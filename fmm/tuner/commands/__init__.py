"""What fmm-tune does, one file a command."""
