import { useState } from "react";
import { useAgent } from "agents/react";
import { useAgentChat } from "@cloudflare/ai-chat/react";
import { Conversation } from "./Conversation.jsx";

// A tool that this page runs. The model is told of it with each message.
const tools = {
  browser_time: {
    description: "The time where the user is",
    parameters: { type: "object", properties: {} },
    execute: () => ({ time: new Date().toLocaleTimeString() })
  }
};

export function Chat({ name }) {
  const agent = useAgent({ agent: "Assistant", name });
  const chat = useAgentChat({
    agent,
    tools,
    onToolCall({ toolCall, addToolOutput }) {
      const tool = tools[toolCall.toolName];
      if (tool) addToolOutput({ toolCallId: toolCall.toolCallId, output: tool.execute(toolCall.input) });
    }
  });
  const isBusy = chat.isStreaming || chat.status === "submitted";

  return (
    <>
      <Conversation messages={chat.messages} onAnswer={chat.addToolApprovalResponse} />
      {chat.isRecovering && <p role="status">The server was interrupted. The answer goes on …</p>}
      <Composer isBusy={isBusy} onSend={(text) => chat.sendMessage({ text })} onStop={chat.stop} />
    </>
  );
}

export function Composer({ isBusy, onSend, onStop }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (text.trim()) onSend(text);
    setText("");
  };
  return (
    <form onSubmit={send}>
      <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} autoFocus />
      {isBusy ? <button type="button" onClick={onStop}>Stop</button> : <button>Send</button>}
    </form>
  );
}
