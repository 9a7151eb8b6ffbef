"""The chat page and the inspector, as the server provides them.

`pages` serves their files and the chat page's own requests; `activity` streams the events of the host to it;
`conversations` lists and searches stored conversations; `inspector` serves the views of `outlast.inspect`
and the actions of operators. The files themselves are in `outlast.ui`.

**What it promises.** Development features work only in development mode, for requests that no foreign page
can send, and for principals that may inspect.

It is the topmost folder below `app`. Start with `pages.respond`.
"""
