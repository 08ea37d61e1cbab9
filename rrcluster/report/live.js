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
  const minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  if (hours) return `${hours} h ${minutes % 60} min`;
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
    drawn.append(shape("rect", { class: "bar", x: 70, y: y + 3, width: Math.max(0, 190 * size / largest), height: 11 }));
    drawn.append(shape("text", { x: 296, y: y + 12, "text-anchor": "end" }, Math.round(size) || 0));
  });
  return drawn;
}

function limits(values) {  // round numbers around the data, three of which make an axis
  const least = Math.min(...values), most = Math.max(...values);
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1e3, 1e6, 1e9]
    .find((step) => (Math.floor(least / step) + 2) * step >= most) ?? (most - least);
  const low = Math.floor(least / step) * step;
  return [low, low + 2 * step];
}

function measured(run, value, digits) {
  return run.measure === "accuracy" ? `${(100 * value).toFixed(digits)}%` : value.toPrecision(3);
}

function curve(run) {
  const points = run.diagnostic, values = points.map(([, value]) => value);
  const drawn = shape("svg", { viewBox: "0 0 300 126", role: "img", "aria-label": `${run.measure} by round, diagnostic, not private` });
  const [low, high] = limits(values), middle = (low + high) / 2;
  const across = (round) => 48 + 248 * round / run.rounds, up = (value) => 102 - 92 * (value - low) / (high - low);
  for (const value of [low, middle, high]) {
    drawn.append(shape("line", { class: "axis", x1: 48, x2: 296, y1: up(value), y2: up(value) }));
    drawn.append(shape("text", { x: 43, y: up(value) + 4, "text-anchor": "end" }, measured(run, value, 0)));
  }
  drawn.append(shape("text", { x: 48, y: 120 }, "round 0"), shape("text", { x: 296, y: 120, "text-anchor": "end" }, run.rounds));
  drawn.append(shape("polyline", { class: `curve series-${run.colour}`, points: points.map(([round, value]) => `${across(round)},${up(value)}`).join(" ") }));
  const [round, value] = points[points.length - 1];
  drawn.append(shape("circle", { class: `dot series-${run.colour}`, cx: across(round), cy: up(value), r: 3 }));
  return drawn;
}

function figure(title, drawn) {
  const made = element("figure");
  made.append(element("figcaption", title, "quiet"), drawn);
  return made;
}

function roundText(run) {
  if (run.status !== "unfinished") return `${run.round} of ${run.rounds}, ${run.status}`;
  const doing = run.round ? "" : ", clients of the first are training";
  return `${run.round} of ${run.rounds}${run.round < run.survey_rounds ? `, looking for groups until round ${run.survey_rounds}` : doing}`;
}

function card(run) {
  const made = element("article");
  const seed = run.secure || run.seed === null ? "" : `, seed ${run.seed}`;
  made.append(element("h2", `${run.label} on ${run.data}${run.secure ? ", secure run" : seed}`), element("div", run.name, "quiet"));
  made.append(progress(run));
  const facts = element("dl");
  const fact = (name, value) => facts.append(element("dt", name), element("dd", value));
  fact("round", roundText(run));
  fact("epsilon", run.delta === null ? run.epsilon : `${run.epsilon} at delta ${run.delta}, for the whole plan`);
  if (!run.secure) {
    if (run.seconds_left !== null && run.silent === null) fact("time left", `about ${duration(run.seconds_left)}`);
    if (run.silent !== null) fact("last news", `${duration(run.silent)} ago: slow, or killed`);
    if (run.groups) fact("groups", run.groups);
    if (run.released_accuracy !== null) fact("accuracy", `${(100 * run.released_accuracy).toFixed(1)}% (released${run.judged_rows ? `, on ${run.judged_rows} rows` : ""})`);
    const last = run.diagnostic[run.diagnostic.length - 1];
    if (last) fact(run.measure, `${measured(run, last[1], 1)} (diagnostic, not private)`);
  } else {
    fact("more", "nothing else is shown of a secure run");
  }
  if (run.report) {
    const link = element("a", "open the report");
    link.href = `/report${query}&run=${encodeURIComponent(run.name)}`;
    facts.append(element("dt", "report"), element("dd"));
    facts.lastChild.append(link);
  } else if (run.status !== "unfinished") {
    fact("report", `rrcluster report ${run.name}`);
  }
  const parts = element("div", undefined, "parts");
  parts.append(facts);
  if (!run.secure) {
    if (run.sizes.length > 1) parts.append(figure("released sizes", sizes(run)));
    if (run.diagnostic.length > 1) parts.append(figure(`${run.measure}, diagnostic, not private`, curve(run)));
  }
  made.append(parts);
  if (run.verdict) made.append(element("p", `Verdict (diagnostic, not private): ${run.verdict}`));
  return made;
}

function stateText({ runs, not_begun, unread, doing, load, processors }) {
  const texts = [];
  if (runs.length) {
    const ended = runs.filter((run) => run.status !== "unfinished").length;
    const machine = load === null ? "" : `; load ${load.toFixed(1)} on ${processors} processors`;
    texts.push(`${ended} of ${runs.length} ${runs.length === 1 ? "run" : "runs"} ended${machine}.`);
  } else {
    texts.push("No run has begun yet.");
  }
  if (doing) texts.push(`${doing} ...`);
  if (not_begun.length) texts.push(`Waiting for a run in ${not_begun.join(", ")}.`);
  if (unread.length) texts.push(`Not readable: ${unread.join(" ")}`);
  return texts.join(" ");
}

function titleText(runs) {  // how far the run is that has most rounds left
  const going = runs.filter((run) => run.status === "unfinished" && run.rounds);
  if (!going.length) return runs.length ? "ended · rrcluster" : "rrcluster";
  const share = Math.min(...going.map((run) => run.round / run.rounds));
  return `${Math.floor(100 * share)}% · rrcluster`;
}

const cards = new Map();  // by name: what was shown, and its card; a card that did not change stays as it is, selected text included

function showRuns(runs) {
  const shown = runs.map((run) => {
    const text = JSON.stringify(run);
    if (cards.get(run.name)?.text !== text) cards.set(run.name, { text, made: card(run) });
    return cards.get(run.name).made;
  });
  const place = document.getElementById("runs");
  if (shown.length !== place.children.length || shown.some((made, at) => made !== place.children[at])) place.replaceChildren(...shown);
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch(`/state${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    const answered = await answer.json();
    showRuns(answered.runs);
    document.querySelector("footer").hidden = !answered.runs.length;
    document.title = titleText(answered.runs);
    state.textContent = stateText(answered);
  } catch (error) {
    state.textContent = `No answer (${error.message}): the command that serves this page has ended. Below is what it said last; \`rrcluster watch\` shows it again.`;
  }
  setTimeout(refresh, 1000);
}

refresh();
