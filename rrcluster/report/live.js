"use strict";
const SVG = "http://www.w3.org/2000/svg";
const query = location.search;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

function progress(run) {
  const share = run.rounds ? Math.min(1, run.round / run.rounds) : 0;
  const drawn = shape("svg", { class: "done", viewBox: "0 0 100 1", preserveAspectRatio: "none", role: "img",
    "aria-label": `round ${run.round} of ${run.rounds}` });
  drawn.append(shape("rect", { x: 0, y: 0, width: 100 * share, height: 1 }));
  return drawn;
}

function sizes(run) {
  const largest = Math.max(1, ...run.sizes);
  const drawn = shape("svg", { viewBox: `0 0 300 ${18 * run.sizes.length}`, role: "img", "aria-label": "released sizes" });
  run.sizes.forEach((size, place) => {
    const y = 18 * place;
    drawn.append(shape("text", { x: 0, y: y + 12 }, `cluster ${place}`));
    drawn.append(shape("rect", { class: "bar", x: 64, y: y + 3, width: Math.max(0, 190 * size / largest), height: 11 }));
    drawn.append(shape("text", { x: 262, y: y + 12 }, Math.round(size) || 0));
  });
  return drawn;
}

function curve(run) {
  const points = run.diagnostic;
  const drawn = shape("svg", { viewBox: "0 0 300 110", role: "img", "aria-label": "accuracy by round, diagnostic, not private" });
  for (const height of [0, 50, 100]) {
    const y = 100 - 0.9 * height;
    drawn.append(shape("line", { class: "axis", x1: 30, x2: 300, y1: y, y2: y }));
    drawn.append(shape("text", { x: 0, y: y + 4 }, `${height}%`));
  }
  const place = ([round, accuracy]) => `${30 + 270 * round / run.rounds},${100 - 90 * accuracy}`;
  if (points.length === 1) drawn.append(shape("circle", { class: `dot series-${run.colour}`, cx: 30 + 270 * points[0][0] / run.rounds, cy: 100 - 90 * points[0][1], r: 3 }));
  drawn.append(shape("polyline", { class: `curve series-${run.colour}`, points: points.map(place).join(" ") }));
  return drawn;
}

function card(run) {
  const made = element("article");
  made.append(element("h2", run.label ? `${run.label}${run.seed === null ? "" : `, seed ${run.seed}`}` : run.name));
  if (run.label) made.append(element("div", run.name, "quiet"));
  made.append(progress(run));
  const facts = element("dl");
  const fact = (name, value) => facts.append(element("dt", name), element("dd", value));
  fact("round", `${run.round} of ${run.rounds}${run.status === "unfinished" ? "" : `, ${run.status}`}`);
  fact("epsilon", run.delta === null ? run.epsilon : `${run.epsilon} at delta ${run.delta}, whole plan`);
  if (!run.secure) {
    if (run.seconds_left !== null) fact("time left", `about ${duration(run.seconds_left)}`);
    if (run.released_accuracy !== null) fact("accuracy", `${(100 * run.released_accuracy).toFixed(1)}% (released)`);
    const last = run.diagnostic[run.diagnostic.length - 1];
    if (last) fact("accuracy", `${(100 * last[1]).toFixed(1)}% (diagnostic, not private)`);
  } else {
    fact("secure", "nothing else is shown");
  }
  made.append(facts);
  if (!run.secure) {
    if (run.sizes.length > 1) made.append(element("div", "released sizes", "quiet"), sizes(run));
    if (run.diagnostic.length) made.append(element("div", "accuracy, diagnostic, not private", "quiet"), curve(run));
  }
  return made;
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch(`/state${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    const answered = await answer.json();
    document.getElementById("runs").replaceChildren(...answered.runs.map(card));
    const unread = answered.unread.length ? ` Not readable yet: ${answered.unread.join(", ")}.` : "";
    const going = answered.runs.filter((run) => run.status === "unfinished").length;
    const load = answered.load === null ? "" : `; load ${answered.load.toFixed(1)} on ${answered.processors} processors`;
    state.textContent = !answered.runs.length ? `Waiting for a run to begin.${unread}`
      : `${answered.runs.length} ${answered.runs.length === 1 ? "run" : "runs"}, ${going} not finished${load}.${unread}`;
  } catch (error) {
    state.textContent = `No answer (${error.message}): the command that serves this page has ended. Below is what it said last; \`rrcluster watch\` shows it again.`;
  }
  setTimeout(refresh, 1000);
}

refresh();
