"""The commands, one module per subject.

A module declares arguments and help texts; the work is done by `serving`, `stores`, `setup` and `talk`,
which it imports when a command runs, so that `outlast --help` is fast. Help texts are complete sentences in
the imperative.

It may import every other module of `cli` except `main`. Start with `main`, which registers the commands.
"""
