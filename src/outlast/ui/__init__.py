"""The chat page and the inspector: plain HTML, CSS and JavaScript modules, served as they are.

`app.js` is where it starts. `socket.js` is the connection, which comes back by itself; `messages.js` makes
messages of chunks (pure); `stored.js` is what the page knows of the transcript (pure); `chat.js` is a
conversation as the server tells it. `outbox.js` holds what the server has not accepted yet, stored by
`records.js`; `couriers.js` sends it for conversations that are not on the screen. `markdown.js` turns what a
model says into nodes, never into HTML. The others show things: `earlier.js` decides how many messages.

`inspect/` is the inspector. `inspect/layout.js` says where everything of a turn's picture stands (pure),
`inspect/picture.js` draws it; `inspect/morph.js` shows the same again without touching what has not changed.
"""
