"""The files of a new project, as `outlast init` writes them. `{{name}}` stands for its name.

They hold no Python modules of outlast, so they import nothing here. Start with `README.md.txt`.
"""
