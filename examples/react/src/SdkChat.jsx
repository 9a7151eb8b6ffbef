import { useMemo } from "react";
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { Composer } from "./Chat.jsx";
import { Conversation } from "./Conversation.jsx";

const address = (name) => `/agents/assistant/${name}`;

/** What to begin with: the page loads it before it shows the chat. */
export async function loadMessages(name) {
  return (await fetch(`${address(name)}/get-messages`)).json();
}

export function SdkChat({ name, initial }) {
  const transport = useMemo(() => new DefaultChatTransport({ api: `${address(name)}/chat` }), [name]);
  const chat = useChat({
    id: name,
    messages: initial,
    resume: true, // goes on with an answer that is under way
    transport,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onError: () => setTimeout(resume, 500) // the server is gone for a moment, and the answer is not
  });

  async function resume() {
    chat.clearError();
    await chat.resumeStream();
  }

  async function stop() {
    await chat.stop(); // only stops reading
    await fetch(`${address(name)}/chat/stop`, { method: "POST" });
  }

  const isBusy = chat.status === "submitted" || chat.status === "streaming";
  return (
    <>
      <Conversation messages={chat.messages} onAnswer={chat.addToolApprovalResponse} />
      <Composer isBusy={isBusy} onSend={(text) => chat.sendMessage({ text })} onStop={stop} />
    </>
  );
}
