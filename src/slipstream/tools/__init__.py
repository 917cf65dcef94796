"""What measures and checks the engine from outside."""
