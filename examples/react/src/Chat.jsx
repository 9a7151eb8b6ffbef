import { useState } from "react";
import { useAgent } from "agents/react";
import { useAgentChat } from "@cloudflare/ai-chat/react";

export function Chat({ name }) {
  const agent = useAgent({ agent: "Assistant", name });
  const { messages, sendMessage, stop, status, isStreaming, isRecovering, addToolApprovalResponse } = useAgentChat({ agent });
  const [text, setText] = useState("");

  function send(event) {
    event.preventDefault();
    if (!text.trim()) return;
    sendMessage({ role: "user", parts: [{ type: "text", text }] });
    setText("");
  }

  return (
    <main>
      <ol>
        {messages.map((message) => (
          <li key={message.id} data-role={message.role}>
            {message.parts.map((part, index) => (
              <Part key={index} part={part} answer={addToolApprovalResponse} />
            ))}
          </li>
        ))}
      </ol>
      {isRecovering && <p role="status">The server was interrupted. The answer goes on …</p>}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} autoFocus />
        {isStreaming || status === "submitted" ? (
          <button type="button" onClick={stop}>Stop</button>
        ) : (
          <button>Send</button>
        )}
      </form>
    </main>
  );
}

function Part({ part, answer }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (!part.type.startsWith("tool-")) return null;
  const tool = part.type.slice("tool-".length);
  return (
    <div className="tool" data-state={part.state}>
      <code>{tool}({JSON.stringify(part.input)})</code>
      {part.state === "approval-requested" && (
        <>
          <button onClick={() => answer({ id: part.approval.id, approved: true })}>Allow</button>
          <button onClick={() => answer({ id: part.approval.id, approved: false })}>Deny</button>
        </>
      )}
      {part.state === "output-available" && <span>{JSON.stringify(part.output)}</span>}
      {part.state === "output-error" && <span>{part.errorText}</span>}
    </div>
  );
}
