export function Conversation({ messages, onAnswer }) {
  return (
    <ol>
      {messages.map((message) => (
        <li key={message.id} data-role={message.role}>
          {message.parts.map((part, index) => (
            <Part key={index} part={part} onAnswer={onAnswer} />
          ))}
        </li>
      ))}
    </ol>
  );
}

function Part({ part, onAnswer }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (!part.type.startsWith("tool-")) return null;
  const answer = (approved) => onAnswer({ id: part.approval.id, approved });
  return (
    <div className="tool" data-state={part.state}>
      <code>{part.type.slice("tool-".length)}({JSON.stringify(part.input)})</code>
      {part.state === "approval-requested" && (
        <>
          <button onClick={() => answer(true)}>Allow</button>
          <button onClick={() => answer(false)}>Deny</button>
        </>
      )}
      {part.state === "output-available" && <span>{JSON.stringify(part.output)}</span>}
      {part.state === "output-error" && <span>{part.errorText}</span>}
    </div>
  );
}
