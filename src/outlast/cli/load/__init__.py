"""Finds what to serve, and watches it for changes.

`load` resolves the argument of `serve` and `dev` (a module, a file, a folder) to an `App`; `discovery`
finds agent classes in a folder; `errors` describes errors in the user's code, with file and line; `watch`
signals changed files.

**What it promises.** Everything that is wrong with a folder is reported at once. Errors point at the user's
code, not at a library's.

It may import `cli.suggest` and the server's `App`. Start with `load`.
"""
