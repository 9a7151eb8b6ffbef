"""W4: a server dies of SIGKILL in mid-answer. How soon is its client told more, and is all still there?

`words` is the answer, the same for all systems: every word has its number and says which process has made it.
`client` asks, is cut off, comes back as browsers do, and compares what it has seen with what is stored.
`agents` is the module that `outlast serve` serves; `shell` puts the others, and the floors, behind the same
WebSocket. `workloads` kills and measures, `jobs` lists. Cloudflare's Think is in `peers/think`.
"""
