"""Access control: which requests and connections the server accepts.

`policy` combines everything into decisions; `provenance` determines where a request comes from (this
machine, a proxy, a page of another origin); `auth` calls the application's check; `token` protects the
inspector where there is no `auth`; `recheck` repeats the check for connections that stay open.

**What it promises.** Without `auth`, only this machine has access, and no foreign page can act on behalf of
its user. A check that fails closes a connection only after repeated attempts.

It may import `core`, `host.address` and nothing else of the server. Start with `policy`.
"""
