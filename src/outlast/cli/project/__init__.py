"""What `outlast init` writes: the files of a new project, as they are here. `{{name}}` is its name."""
