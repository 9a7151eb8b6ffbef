// Think with a model that talks without a pause: what outlast's agent is in `benchmarks/wire`.
import { routeAgentRequest } from "agents";
import { Think } from "@cloudflare/think";

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 }
};

function* answer(deltas) {
  yield { type: "stream-start", warnings: [] };
  yield { type: "text-start", id: "t" };
  // As long as the deltas of the other systems, which tell the time: workerd's clock stands still here.
  for (let i = 0; i < deltas; i++) yield { type: "text-delta", id: "t", delta: `${i} 12345.678901 ` };
  yield { type: "text-end", id: "t" };
  yield { type: "finish", finishReason: { unified: "stop", raw: undefined }, usage };
}

function talker(deltas) {
  return {
    specificationVersion: "v4",
    provider: "bench",
    modelId: "talker",
    supportedUrls: {},
    async doGenerate() {
      throw new Error("it streams, and nothing else");
    },
    async doStream() {
      return { stream: ReadableStream.from(answer(deltas)) };
    }
  };
}

export class Chat extends Think {
  getModel() {
    return talker(Number(this.env.DELTAS));
  }
}

// For the recovery benchmark: a word has its number and the life that says it, and the answer goes on where the
// conversation ends. `benchmarks/recovery/words.py` says the same.
const WORDS = 250;
const PAUSE = 10;

async function* words(after, life) {
  yield { type: "stream-start", warnings: [] };
  yield { type: "text-start", id: "t" };
  const began = Date.now();
  for (let i = after; i < WORDS; i++) {
    const wait = began + (i - after) * PAUSE - Date.now();
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    yield { type: "text-delta", id: "t", delta: `${i}.${life} ` };
  }
  yield { type: "text-end", id: "t" };
  yield { type: "finish", finishReason: { unified: "stop", raw: undefined }, usage };
}

function saidBefore(prompt) {
  const texts = prompt
    .filter((message) => message.role === "assistant")
    .flatMap((message) => message.content)
    .map((part) => part.text ?? "");
  return texts.join("").split(" ").filter(Boolean).length;
}

export class Words extends Think {
  getModel() {
    return {
      ...talker(0),
      doStream: async ({ prompt }) => ({
        stream: ReadableStream.from(words(saidBefore(prompt), this.env.LIFE))
      })
    };
  }
}

// For the benchmark of the seam: the model is that of `benchmarks/seam/provider.py`, an OpenAI-compatible server.
async function* asked(url, prompt) {
  const messages = prompt.map(({ role, content }) => ({
    role,
    content: typeof content === "string" ? content : content.map((part) => part.text ?? "").join("")
  }));
  const body = JSON.stringify({ model: "m", stream: true, temperature: 0, seed: 1, max_tokens: 120, messages });
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${url}/chat/completions`, { method: "POST", headers, body });
  yield { type: "stream-start", warnings: [] };
  yield { type: "text-start", id: "t" };
  let left = "";
  for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (left + text).split("\n");
    left = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: {"))) {
      const delta = JSON.parse(line.slice(6)).choices[0]?.delta?.content;
      if (delta) yield { type: "text-delta", id: "t", delta };
    }
  }
  yield { type: "text-end", id: "t" };
  yield { type: "finish", finishReason: { unified: "stop", raw: undefined }, usage };
}

export class Seam extends Think {
  getModel() {
    return {
      ...talker(0),
      doStream: async ({ prompt }) => ({
        stream: ReadableStream.from(asked(this.env.PROVIDER.replace("{id}", this.name), prompt))
      })
    };
  }
}

export default {
  async fetch(request, env) {
    if (new URL(request.url).pathname === "/healthz") return new Response("ok");
    return (await routeAgentRequest(request, env)) ?? new Response("Not found", { status: 404 });
  }
};
