"""Streamed answers over real WebSockets: a server in its own process, and one client for all systems.

`client` reads frames as cheaply as Python can, and checks that no delta is missing or out of order.
`server` is what runs on the other side: outlast's `App`, LangGraph, or the floor, which sends the same
frames after a group commit. `workloads` measures, `jobs` lists. Cloudflare's Think is in `peers/think`.
"""
