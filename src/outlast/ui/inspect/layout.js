// The layout of a turn's picture. Pure: moments in, coordinates out.
//
// Time runs from left to right, not to scale: some moments have no time, and durations range from milliseconds to
// minutes. Every moment has a minimum width; pauses share the rest by the square root of their duration.

const ROOM = { said: 74, step: 40, called: 58, interrupted: 44, decided: 124 };
const SPARE = { said: 6, called: 4, step: 2, accepted: 1 }; // weights for the remaining width
const LEAST = 30;
const EDGE = 16; // before the first moment and after the last
const LANE = 34;
const BAR = 22;
const FLAGS = 44; // the height above the lanes, for the labels of red and amber marks
export const LANES = ["Inbox", "Attempts", "Steps", "Tools", "Chunks"];

/** Returns the x coordinates of the moments, and the total width. */
export function places(moments, width) {
  const anchors = [];
  let last = -Infinity;
  moments.forEach((moment, n) => {
    if (moment.at !== null && moment.at >= last) {
      anchors.push(n);
      last = moment.at;
    }
  });
  const gaps = moments.slice(0, -1).map((moment) => ROOM[moment.kind] ?? LEAST);
  const least = gaps.reduce((sum, gap) => sum + gap, 0) + 2 * EDGE;
  const spare = Math.max(0, width - least);
  const pauses = anchors.slice(1).map((n, k) => Math.sqrt(moments[n].at - moments[anchors[k]].at));
  const whole = pauses.reduce((sum, pause) => sum + pause, 0);
  if (whole > 0) {
    pauses.forEach((pause, k) => {
      const [from, to] = [anchors[k], anchors[k + 1]];
      const weights = moments.slice(from, to).map((moment) => SPARE[moment.kind] ?? 0.4);
      const sum = weights.reduce((one, other) => one + other, 0);
      for (let n = from; n < to; n += 1) gaps[n] += ((spare * pause) / whole) * (weights[n - from] / sum);
    });
  } else gaps.forEach((gap, n) => (gaps[n] = gap + spare / gaps.length));
  const x = [EDGE];
  gaps.forEach((gap) => x.push(x.at(-1) + gap));
  return { x, width: Math.max(width, least), anchors };
}

const find = (moments, from, test) => {
  for (let n = from; n < moments.length; n += 1) if (test(moments[n])) return n;
  return -1;
};

function attempts(moments) {
  const found = [];
  let from = find(moments, 0, (each) => each.kind === "claimed");
  let number = 1;
  while (from >= 0) {
    const cut = find(moments, from + 1, (each) => each.kind === "interrupted" || each.kind === "left");
    const to = cut < 0 ? moments.length - 1 : cut;
    found.push({ lane: "Attempts", from, to, label: `Attempt ${number}`, tone: cut < 0 ? "ok" : "died" });
    if (cut < 0) break;
    const decided = find(moments, cut + 1, (each) => each.kind === "decided");
    const continued = find(moments, cut + 1, (each) => each.kind === "continued");
    from = continued < 0 ? -1 : decided >= 0 && decided < continued ? decided : continued;
    const until = decided >= 0 ? decided : continued >= 0 ? continued : moments.length - 1;
    if (until > cut) found.push({ lane: "Attempts", from: cut, to: until, label: "", tone: "nobody" });
    number += 1;
  }
  return found;
}

function inbox(moments) {
  const claimed = find(moments, 0, (each) => each.kind === "claimed");
  const last = moments.length - 1;
  if (claimed < 0) return [{ lane: "Inbox", from: 0, to: last, label: "waiting", tone: "waits" }];
  const bars = [{ lane: "Inbox", from: claimed, to: last, label: moments[last].kind === "settled" ? "claimed, until it settled" : "claimed", tone: "thin" }];
  return [{ lane: "Inbox", from: 0, to: claimed, label: "", tone: "waits" }, ...bars];
}

const ENDS_A_STEP = new Set(["step", "interrupted", "settled", "running", "left", "cancelled"]);

/** Returns the bars of steps. An interrupted step continues in the next attempt, if that begins with text. */
function steps(moments) {
  let label = "";
  return moments.flatMap((moment, from) => {
    if (moment.kind !== "step" && !(moment.kind === "continued" && label && moments[from + 1]?.kind === "said")) return [];
    const next = find(moments, from + 1, (each) => ENDS_A_STEP.has(each.kind));
    const to = next < 0 ? moments.length - 1 : next;
    if (moment.kind === "step") label = moment.what.split(":")[0];
    const shown = moment.kind === "step" ? label : `${label} continues`;
    return [{ lane: "Steps", from, to, label: shown, tone: moments[to].kind === "interrupted" ? "cut" : "step" }];
  });
}

/** Returns the bars of calls, until their results, and of approvals, until their answers. Overlapping bars are stacked. */
function tools(moments) {
  const bars = [];
  const returned = new Set();
  moments.forEach((moment, from) => {
    const isCall = moment.kind === "called" && moment.tool;
    if (!isCall && moment.kind !== "asked") return;
    const wanted = isCall ? "returned" : "answered";
    const again = (each) => isCall && each.kind === "called" && each.tool === moment.tool;
    let to = -1;
    for (let n = from + 1; n < moments.length && to < 0; n += 1) {
      if (moments[n].kind === wanted && (!isCall || moments[n].tool === moment.tool) && !returned.has(n)) to = n;
      else if (again(moments[n]) && moments[n].what.includes(" runs again. ")) break;
    }
    if (to >= 0) returned.add(to);
    const cut = find(moments, from + 1, (each) => each.kind === "interrupted");
    const end = to >= 0 ? to : cut >= 0 ? cut : moments.length - 1;
    const isUnknown = to >= 0 && moments[to].what.includes("unknown");
    const tone = !isCall ? "human" : isUnknown ? "unknown" : to < 0 ? "cut" : moments[to].ok ? "tool" : "failed";
    bars.push({ lane: "Tools", from, to: end, label: isCall ? moment.tool : "waiting for approval", tone });
  });
  const free = []; // the moment until which each row is occupied
  for (const bar of bars) {
    const row = free.findIndex((until) => until <= bar.from);
    bar.row = row < 0 ? free.length : row;
    free[bar.row] = bar.to;
  }
  return bars;
}

/** Returns the number after the last chunk of an attempt. */
const endOf = (commits, attempt) => Math.max(0, ...commits.filter((each) => each.attempt <= attempt).map((each) => each.seq + each.chunks));

function chunks(moments, commits) {
  return moments.flatMap((moment, from) => {
    if (moment.kind !== "said") return [];
    const to = Math.min(from + 1, moments.length - 1);
    const next = moments.slice(from + 1).find((each) => each.seq !== null)?.seq ?? Infinity;
    const number = moment.seq === null ? 0 : Math.min(next, endOf(commits, moment.attempt)) - moment.seq;
    const label = number > 0 ? `${number.toLocaleString("en")} ${number === 1 ? "chunk" : "chunks"}` : "says";
    return [{ lane: "Chunks", from, to, label, tone: "said" }];
  });
}

/** Returns the places of commits, interpolated between the moments whose chunk numbers are known. */
function chunkPlaces(moments, x, commits) {
  const known = [];
  moments.forEach((moment, n) => {
    const before = known.at(-1)?.[0] ?? 0;
    if (moment.seq !== null) known.push([moment.seq, x[n]]);
    else if (moment.kind === "interrupted" || moment.kind === "left") known.push([Math.max(before, endOf(commits, moment.attempt)), x[n] - 3]);
    else if (moment.kind === "continued") known.push([before, x[n]]);
  });
  if (!known.length) return [];
  known.push([Math.max(endOf(commits, Infinity), known.at(-1)[0] + 1), x.at(-1)]);
  const at = (seq) => {
    const next = known.findIndex(([each]) => each > seq);
    if (next <= 0) return next < 0 ? known.at(-1)[1] : x[0] + (known[0][1] - x[0]) * 0.8;
    const [[low, left], [high, right]] = [known[next - 1], known[next]];
    return left + ((right - left) * (seq - low)) / (high - low);
  };
  const found = [];
  let before = -Infinity;
  for (const commit of commits) {
    const place = at(commit.seq + commit.chunks - 1);
    if (place - before < 3) continue; // too close to be distinguished
    found.push({ x: place, commit });
    before = place;
  }
  return found;
}

/** Returns everything to draw, in pixels: lanes, bars, marks, ticks of the axis. */
export function layout(details, width) {
  const { moments } = details;
  const { x, width: wide, anchors } = places(moments, width);
  const bars = [...inbox(moments), ...attempts(moments), ...steps(moments), ...tools(moments), ...chunks(moments, details.commits)];
  const rows = Math.max(1, ...bars.map((bar) => (bar.row ?? 0) + 1));
  let top = FLAGS;
  const lanes = LANES.map((name) => {
    const lane = { name, top, height: name === "Tools" ? LANE + (rows - 1) * (BAR + 4) : LANE };
    top += lane.height;
    return lane;
  });
  const laneOf = Object.fromEntries(lanes.map((lane) => [lane.name, lane]));
  const start = moments[0].at;
  const ticks = [];
  for (const n of anchors) {
    const isLast = n === anchors.at(-1);
    while (isLast && ticks.length > 1 && x[n] - ticks.at(-1).x < 64) ticks.pop();
    if (!ticks.length || x[n] - ticks.at(-1).x >= 64) ticks.push({ x: x[n], ms: moments[n].at - start, n });
  }
  return {
    width: wide,
    height: top + 26,
    bottom: top,
    lanes,
    ticks,
    x,
    bars: bars.map((bar) => ({ ...bar, x: x[bar.from], width: Math.max(4, x[bar.to] - x[bar.from] - 2), y: laneOf[bar.lane].top + (bar.lane === "Chunks" ? 4 : (LANE - BAR) / 2) + (bar.row ?? 0) * (BAR + 4), height: bar.lane === "Chunks" ? 17 : BAR })),
    commits: chunkPlaces(moments, x, details.commits).map((each) => ({ ...each, y: laneOf.Chunks.top })),
    marks: moments.flatMap((moment, n) => mark(moment, n, x, laneOf))
  };
}

function mark(moment, n, x, laneOf) {
  const middle = (name) => laneOf[name].top + LANE / 2;
  const made = (kind, y, more = {}) => [{ n, kind, x: x[n], y, ...more }];
  switch (moment.kind) {
    case "accepted":
      return made("admitted", middle("Inbox"));
    case "settled":
      return made(moment.ok ? "settled" : "ended", middle("Inbox"));
    case "cancelled":
      return made("cancelled", middle("Inbox"));
    case "interrupted":
    case "left":
      return made("crash", FLAGS / 2, { label: moment.cause ?? "unknown" });
    case "decided":
      return made("decision", FLAGS / 2, { label: `row ${moment.row}: ${moment.action}`, why: moment.why ?? "" });
    case "running":
      return made("running", middle("Attempts"));
    case "dropped":
      return made("dropped", middle("Chunks"));
    default:
      return [];
  }
}
