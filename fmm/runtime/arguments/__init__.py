"""The arguments of the public functions, checked: errors name the argument, and say what is valid."""
