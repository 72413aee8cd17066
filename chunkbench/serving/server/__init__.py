"""A server that speaks OpenAI's protocol: our engine, or transformers' own, behind one front."""
