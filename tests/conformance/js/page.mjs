// A browser tab without a browser: the unmodified React hooks in jsdom. A process is a tab: it shares nothing with
// another one but the server, and can be killed. It may `open` one page after another, each after the other's `leave`.
//
// In: a command a line, {id, do, with}. Out: {screen} for whatever React has put on the screen, in order and without
// gaps; {log} for what happened beside it; {id, result} or {id, error} for a command.
import readline from "node:readline";
import { JSDOM } from "jsdom";
import WS from "ws";

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const log = (kind, value) => say({ log: [kind, value ?? null] });
for (const level of ["log", "info", "debug", "warn", "error"]) {
  console[level] = (...all) => log("console", all.map((one) => one?.stack ?? String(one)).join(" "));
}
process.on("unhandledRejection", (reason) => log("unhandled", reason?.stack ?? String(reason)));
process.on("uncaughtException", (error) => {
  log("crash", error.stack);
  process.exit(1);
});

const dom = new JSDOM("<!doctype html><main></main>", { url: "http://127.0.0.1/" });
globalThis.window = dom.window;
globalThis.document = dom.window.document;
Object.defineProperty(globalThis, "navigator", { value: dom.window.navigator, configurable: true });

const sockets = new Set();
globalThis.WebSocket = class extends WS {
  constructor(url, protocols) {
    super(url, protocols, { allowSynchronousEvents: false }); // a task for each message, as browsers do it
    sockets.add(this);
    this.on("message", (data) => log("received", String(data)));
    this.on("close", (code) => {
      sockets.delete(this);
      log("closed", code);
    });
  }
  send(data, ...rest) {
    log("sent", String(data));
    super.send(data, ...rest);
  }
};

const React = (await import("react")).default;
const { createRoot } = await import("react-dom/client");
const { useAgent } = await import("agents/react");
const { useAgentChat } = await import("@cloudflare/ai-chat/react");
const { useChat } = await import("@ai-sdk/react");
const { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses, lastAssistantMessageIsCompleteWithToolCalls } =
  await import("ai");

let settings;
let agent; // what useAgent has returned last
let chat; // what useAgentChat or useChat has returned last

/** What the page shows, told after every commit: a render that React has thrown away was never seen. */
function useScreen() {
  React.useLayoutEffect(() => {
    say({
      screen: {
        identified: agent?.identified ?? null,
        state: agent?.state ?? null,
        status: chat?.status ?? null,
        error: chat?.error?.message ?? null,
        messages: chat?.messages ?? null,
        streaming: chat?.isStreaming ?? null,
        serverStreaming: chat?.isServerStreaming ?? null,
        recovering: chat?.isRecovering ?? null
      }
    });
  });
}

/** Answers the calls that this page knows an answer to. */
function answering({ toolCall, addToolOutput = chat.addToolOutput }) {
  log("toolCall", toolCall);
  const { toolName, toolCallId } = toolCall;
  if (Object.hasOwn(settings.answers, toolName)) {
    addToolOutput({ tool: toolName, toolCallId, output: settings.answers[toolName] });
  }
}

const events = {
  onData: (part) => log("data", part),
  onError: (error) => log("error", error.message),
  onFinish: ({ isAbort, isDisconnect, isError }) => log("finish", { isAbort, isDisconnect, isError })
};

function AgentChat() {
  chat = useAgentChat({
    agent,
    throttle: false,
    onToolCall: answering,
    onTurnEnd(end) {
      log("turnEnd", end);
      const next = settings.sendOnTurnEnd.shift();
      if (next) commands.send(next);
    },
    ...events
  });
  useScreen();
}

function JustAgent() {
  useScreen();
}

function AgentPage() {
  agent = useAgent({
    host: settings.host,
    protocol: "ws",
    agent: "FixtureAgent",
    name: settings.name,
    minReconnectionDelay: 100,
    maxReconnectionDelay: 300,
    onStateUpdate: (state, source) => log("state", { source, state })
  });
  const Inner = settings.hook === "useAgent" ? JustAgent : AgentChat;
  return React.createElement(React.Suspense, null, React.createElement(Inner));
}

const address = (rest) => `http://${settings.host}/agents/fixture-agent/${settings.name}/${rest}`;

function SdkPage() {
  chat = useChat({
    id: settings.name,
    messages: settings.messages,
    resume: true,
    transport: settings.transport,
    onToolCall: answering,
    sendAutomaticallyWhen: (now) =>
      lastAssistantMessageIsCompleteWithToolCalls(now) || lastAssistantMessageIsCompleteWithApprovalResponses(now),
    ...events
  });
  useScreen();
}

/** The page as an application loads it: with the conversation so far, and whatever runs resumed. */
async function prepareSdkPage() {
  settings.messages = await (await fetch(address("get-messages"))).json();
  settings.transport = new DefaultChatTransport({
    api: address("chat"),
    fetch: async (url, options) => {
      log("fetch", { url: String(url), method: options?.method ?? "GET" });
      return fetch(url, options);
    },
    ...(settings.reconnectTo ? { prepareReconnectToStreamRequest: () => ({ api: address(settings.reconnectTo) }) } : {})
  });
}

let root;
const background = (promise) => Promise.resolve(promise).catch((error) => log("rejected", error.message));

const commands = {
  async open(given) {
    settings = { answers: {}, sendOnTurnEnd: [], ...given };
    if (settings.hook === "useChat") await prepareSdkPage();
    root = createRoot(document.querySelector("main"), {
      onUncaughtError: (error) => log("crash", error?.stack ?? String(error))
    });
    root.render(React.createElement(settings.hook === "useChat" ? SdkPage : AgentPage));
  },
  async leave() {
    if (settings.hook === "useChat") await chat.stop();
    root.unmount();
    agent = chat = undefined;
    const closed = [...sockets].map((socket) => new Promise((resolve) => socket.once("close", resolve)));
    sockets.forEach((socket) => socket.terminate());
    await Promise.all(closed);
  },
  send: ({ text, id }) => void background(chat.sendMessage({ id, role: "user", parts: [{ type: "text", text }] })),
  stop: () => chat.stop(),
  async stopOnServer() {
    await chat.stop();
    return (await fetch(address("chat/stop"), { method: "POST" })).json();
  },
  regenerate: () => void background(chat.regenerate()),
  clear: () => chat.clearHistory(),
  toolOutput: (given) => void background(chat.addToolOutput(given)),
  approve: ({ id, approved }) => void background(chat.addToolApprovalResponse({ id, approved })),
  setState: ({ state }) => agent.setState(state),
  stub: ({ method, args }) => agent.stub[method](...args),
  call: ({ method, args }) => agent.call(method, args),
  async callStreaming({ method, args }) {
    const seen = { chunks: [], done: null, error: null };
    const stream = {
      onChunk: (chunk) => seen.chunks.push(chunk),
      onDone: (last) => (seen.done = last),
      onError: (error) => (seen.error = error)
    };
    try {
      seen.result = await agent.call(method, args, { stream });
    } catch (error) {
      seen.rejected = error.message;
    }
    return seen;
  },
  drop: () => sockets.forEach((socket) => socket.terminate())
};

readline
  .createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const { id, do: what, with: given } = JSON.parse(line);
    try {
      say({ id, result: (await commands[what](given ?? {})) ?? null });
    } catch (error) {
      say({ id, error: error?.message ?? String(error) });
    }
  })
  .on("close", () => process.exit(0));
