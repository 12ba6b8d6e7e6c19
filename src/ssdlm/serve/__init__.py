"""HTTP in, texts out: what `ssdlm serve` runs.  api, engine -> [serve] -> command line

    app (routes) -> completions, chat, responses, native (what is asked) -> worker (the engine)

Everything that comes from a client is checked before it reaches the engine, and everything that a
client may not know stays here. The libraries of the extra `serve` are loaded by this room alone.
"""
