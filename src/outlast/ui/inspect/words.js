// Times, states and kinds in words.

import { durationText, h } from "../dom.js";

export const STATES = {
  stuck: "stuck",
  recovering: "recovering",
  answering: "answering",
  waiting: "waiting",
  working: "working",
  idle: "idle"
};
const TONES = { stuck: "bad", recovering: "warn", answering: "busy", waiting: "busy", working: "busy", running: "busy", pending: "quiet", completed: "ok", done: "ok", error: "bad", failed: "bad", aborted: "warn", skipped: "quiet", interrupted: "warn", exhausted: "bad", open: "warn", unknown: "warn", begun: "busy", cancelled: "warn" };

/** Creates a label for a state, in its colour. */
export function chip(text, tone = TONES[text] ?? "quiet") {
  return h("span", { class: "chip", "data-tone": tone }, text);
}

/** Returns how long ago a time was. */
export function ago(at, now) {
  if (at === null || at === undefined) return "never";
  const ms = now - at;
  if (ms < 1500) return ms < -1500 ? `in ${span(-ms)}` : "now";
  return `${span(ms)} ago`;
}

export function span(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

/** Returns the exact date and time. */
export function clock(at) {
  const date = new Date(at);
  const pad = (value, digits = 2) => String(value).padStart(digits, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

export function when(at, now) {
  return at === null || at === undefined ? h("span", { class: "none" }, "–") : h("time", { datetime: new Date(at).toISOString(), title: clock(at) }, ago(at, now));
}

export function took(turn) {
  if (turn.startedAt === null || turn.endedAt === null) return "";
  return durationText(Math.max(0, turn.endedAt - turn.startedAt));
}

/** Returns the time since the turn was accepted. */
export const offset = (ms) => (ms === 0 ? "0" : ms < 1000 ? `+${ms} ms` : ms < 60000 ? `+${(ms / 1000).toFixed(2)} s` : `+${durationText(ms)}`);

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export const KINDS = {
  accepted: "Admission",
  waiting: "Waiting",
  claimed: "Turn",
  step: "Step",
  said: "Says",
  called: "Call",
  returned: "Result",
  asked: "Approval",
  answered: "Approval",
  dropped: "Taken back",
  interrupted: "Crash",
  decided: "Decision",
  continued: "Continuation",
  running: "Running",
  left: "Left",
  cancelled: "Cancel",
  settled: "Settle"
};

/** Returns the kind of a moment. Not every interruption is a crash. */
export function kindText(moment) {
  if (moment.kind !== "interrupted") return KINDS[moment.kind] ?? moment.kind;
  return { deploy: "Deploy", evicted: "Eviction", stalled: "Stall" }[moment.cause] ?? "Crash";
}

export const json = (value) => JSON.stringify(value, null, 2) ?? "null";
