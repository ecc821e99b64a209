"""What was asked (EngineArgs), what is true (ModelFacts), what was decided (EngineConfig)."""
