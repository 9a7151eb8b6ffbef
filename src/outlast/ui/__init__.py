"""The chat page and the inspector: plain HTML, CSS and JavaScript modules, served without a build step.

Start with `app.js`. `socket.js` is the connection, which reconnects automatically; `messages.js` builds
messages from chunks (pure); `stored.js` is the part of the transcript that the page has loaded (pure);
`chat.js` combines them into a conversation. `outbox.js` holds requests that the server has not accepted yet,
stored by `records.js`; `couriers.js` sends them for conversations that are not on screen. `markdown.js` turns
the model's text into nodes, never into HTML. The other modules are views; `earlier.js` decides how many
messages are shown; `summary.js` marks where the model sees a summary of them.

`inspect/` is the inspector. `inspect/layout.js` computes the layout of a turn's picture (pure),
`inspect/picture.js` draws it; `inspect/morph.js` updates a view without touching unchanged nodes.
"""
