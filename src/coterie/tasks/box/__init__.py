"""What runs inside the sandbox, handed over compiled by `confine`. Imports the standard library and itself only."""
