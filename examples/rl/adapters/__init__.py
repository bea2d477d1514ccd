"""Rollouts from and to the records of frameworks for reinforcement learning, by the names of their own fields.

Read from the libraries' own code: `AgentLoopOutput` of verl 0.9.1, `GeneratorOutput` of SkyRL 0.4.0, `Experience` of
OpenRLHF 0.11.2, `Datum` of tinker 0.38.0. An adapter takes these objects or mappings of their fields, and returns
mappings, so that it needs neither ray nor vLLM nor the library: `AgentLoopOutput(**to_agent_loop_output(sample))`.

All raise InvalidSample, which names sample, field and value.
"""
