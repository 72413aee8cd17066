"""Our server: engine, scheduler, constrained answers, and OpenAI's protocol for clients."""
