"""The chat page: plain HTML, CSS and JavaScript modules, served by `outlast.server.pages` as they are.

`app.js` is where it starts. `socket.js` is the connection, which comes back by itself; `messages.js` makes
messages of chunks (pure); `chat.js` is a conversation as the server tells it; `markdown.js` turns what a
model says into nodes, never into HTML. The others show things.
"""
