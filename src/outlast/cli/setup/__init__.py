"""Starting with outlast: the demo, a new project, and a check of the machine.

`demo` runs the demo server and opens a browser; `init` writes the files of `cli.project`; `doctor` checks
the disk, the packages, the keys and the store; `models` knows which package and key a model needs.

**What it promises.** `init` never changes an existing file. `doctor` changes nothing and uses no network
besides the store.

It may import `cli.output` and `cli.suggest`; `demo` also uses `cli.serving`. Start with `doctor`.
"""
