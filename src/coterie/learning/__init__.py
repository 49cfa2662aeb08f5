"""Learning from rewards: who practises on what, and how agents and router change by it. Answers no query itself."""
