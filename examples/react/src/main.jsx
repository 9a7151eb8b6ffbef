import { Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./Chat.jsx";
import { SdkChat, loadMessages } from "./SdkChat.jsx";
import "./style.css";

// The name of the agent: one conversation each. Yours would be the user's, or that of a thread.
const query = new URLSearchParams(window.location.search);
const name = query.get("name") ?? "default";
const root = createRoot(document.getElementById("root"));

if (query.has("sdk")) {
  const initial = await loadMessages(name);
  root.render(<main><SdkChat name={name} initial={initial} /></main>);
} else {
  root.render(
    <main>
      <Suspense fallback={<p>Loading…</p>}>
        <Chat name={name} />
      </Suspense>
    </main>
  );
}
