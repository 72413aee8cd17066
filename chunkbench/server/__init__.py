"""Our server: engine, scheduler, constrained answers, and OpenAI's protocol in front."""
