import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./Chat.jsx";
import "./style.css";

// The name of the agent: one conversation each. Yours would be the user's, or that of a thread.
const name = new URLSearchParams(window.location.search).get("name") ?? "default";

createRoot(document.getElementById("root")).render(
  <StrictMode>
    <Suspense fallback={<p>Loading…</p>}>
      <Chat name={name} />
    </Suspense>
  </StrictMode>
);
