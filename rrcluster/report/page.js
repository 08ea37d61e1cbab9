"use strict";
// The page's tables can be sorted and filtered, and its runs compared in one chart. Nothing is fetched.

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Tables

function sortKey(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text);
  return Number.isNaN(number) ? text : number;
}

function compare(one, two) {  // numbers before words, which have no order among them but that of the alphabet
  if (typeof one === typeof two) return typeof one === "number" ? one - two : one.localeCompare(two);
  return typeof one === "number" ? -1 : 1;
}

function sortTable(table, column, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [sortKey(row, column), row]);
  const words = rows.filter(([key]) => typeof key === "string"), numbers = rows.filter(([key]) => typeof key === "number");
  for (const part of [numbers, words]) part.sort(([one], [two]) => (descending ? -1 : 1) * compare(one, two));
  body.append(...[...numbers, ...words].map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, at) => {
    if (at === column) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

function equip(table) {
  const heads = [...table.tHead.rows[0].cells], names = heads.map((cell) => cell.firstChild.textContent.trim());
  heads.forEach((cell, column) => {
    const button = element("button", { type: "button", className: "sort", title: "Sort by this column" });
    button.append(...cell.childNodes);
    button.addEventListener("click", () => sortTable(table, column, cell.getAttribute("aria-sort") === "ascending"));
    cell.append(button);
  });
  if (table.tBodies[0].rows.length < 4) return;
  const filter = element("input", { type: "search", placeholder: "Filter rows", ariaLabel: "Filter rows" });
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  const choice = element("select", { className: "narrow", ariaLabel: "Sort by" }, element("option", { value: "" }, "Sort by …"));
  names.forEach((name, column) => {
    choice.append(element("option", { value: `${column} up` }, `${name}, upwards`));
    choice.append(element("option", { value: `${column} down` }, `${name}, downwards`));
  });
  choice.addEventListener("change", () => {
    const [column, way] = choice.value.split(" ");
    if (way) sortTable(table, Number(column), way === "down");
  });
  table.parentElement.before(element("div", { className: "tools" }, filter, choice));
}

document.querySelectorAll("main table:not(.fixed)").forEach(equip);

// Chart

const DASHES = ["", "7 3", "2 2", "9 3 2 3"];
const MARKERS = ["M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0", "M-3-3h6v6h-6z", "M0-4L4,3H-4z", "M0-4.5L4,0L0,4.5L-4,0z",
  "M0,4L4-3H-4z", "M-1.5-4h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z", "M-4-2L-2-4L0-2L2-4L4-2L2,0L4,2L2,4L0,2L-2,4L-4,2L-2,0z"];
const SHOWN_FIRST = 7, MARGIN = { left: 46, right: 14, top: 12, bottom: 36 };

const data = JSON.parse(document.getElementById("data").textContent);
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
const chosenMeasure = document.getElementById("measure"), chosenAxis = document.getElementById("axis");
const shown = new Set();
let drawn = { series: [], places: [] }, at = -1;

function shape(name, attributes, text) {
  const made = document.createElementNS(chart.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const colour = (line) => line.look[0] < 6 ? `var(--series-${line.look[0]})` : "currentColor";
const measure = () => data.measures.find((entry) => entry.key === chosenMeasure.value);
const percentage = () => measure().title.endsWith("(%)");
const written = (value) => percentage() ? `${value.toFixed(1)}%` : String(+value.toPrecision(4));
const last = (line) => { const values = line.values[measure().key]; return values ? values[1][values[1].length - 1] : -Infinity; };

function byRound() {
  return data.lines.filter((line, place) => shown.has(place) && line.values[measure().key]).map((line) => {
    const [rounds, means, halves] = line.values[measure().key];
    return { line, points: rounds.map((x, place) => ({ x, y: means[place], half: halves ? halves[place] : 0 })) };
  });
}

function byEpsilon() {  // the last value of a method at each of its epsilons; without a finite one it has no place
  const methods = new Map();
  data.lines.forEach((line, place) => {
    const values = line.values[measure().key];
    if (!shown.has(place) || !values || line.epsilon === null) return;
    const end = values[1].length - 1;
    if (!methods.has(line.method)) methods.set(line.method, { line: { ...line, label: line.method }, points: [] });
    methods.get(line.method).points.push({ x: line.epsilon, y: values[1][end], half: values[2] ? values[2][end] : 0 });
  });
  for (const entry of methods.values()) entry.points.sort((one, two) => one.x - two.x);
  return [...methods.values()];
}

function ticks(low, high, wanted) {
  const rough = (high - low || 1) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const marks = [];
  for (let mark = Math.ceil(low / step) * step; mark <= high + step / 1e6; mark += step) marks.push(+mark.toPrecision(12));
  return marks;
}

function limits(series) {
  const points = series.flatMap((entry) => entry.points);
  let low = points.reduce((least, point) => Math.min(least, point.y - point.half), Infinity);
  let high = points.reduce((most, point) => Math.max(most, point.y + point.half), -Infinity);
  const room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  low -= room; high += room;
  return percentage() ? [Math.max(0, low), Math.min(100, high)] : [low, high];
}

function scales(series) {
  const places = [...new Set(series.flatMap((entry) => entry.points.map((point) => point.x)))].sort((one, two) => one - two);
  const width = chart.parentElement.clientWidth, height = Math.max(250, Math.min(430, 0.55 * width));
  const along = chosenAxis.value === "epsilon" ? Math.log2 : Number;
  const first = along(places[0]), reach = along(places[places.length - 1]) - first || 1, [low, high] = limits(series);
  return {
    places, width, height, low, high,
    x: (place) => MARGIN.left + (width - MARGIN.left - MARGIN.right) * (places.length > 1 ? (along(place) - first) / reach : 0.5),
    y: (value) => height - MARGIN.bottom - (height - MARGIN.top - MARGIN.bottom) * (value - low) / (high - low),
  };
}

function drawAxes({ places, width, height, low, high, x, y }) {
  const base = height - MARGIN.bottom;
  for (const mark of ticks(low, high, 5)) {
    chart.append(shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(mark), y2: y(mark) }));
    chart.append(shape("text", { x: MARGIN.left - 6, y: y(mark) + 4, "text-anchor": "end" }, mark));
  }
  const epsilons = new Map(data.lines.map((line) => [line.epsilon, line.tick]));
  const marks = chosenAxis.value === "epsilon" ? places : ticks(places[0], places[places.length - 1], width / 90).filter(Number.isInteger);
  for (const mark of marks) {
    const text = chosenAxis.value === "epsilon" ? epsilons.get(mark) : mark;
    chart.append(shape("text", { x: x(mark), y: base + 16, "text-anchor": "middle" }, text));
  }
  chart.append(shape("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));
  chart.append(shape("text", { x: (MARGIN.left + width) / 2, y: height - 4, "text-anchor": "middle" }, chosenAxis.value));
}

function drawSeries({ line, points }, { x, y }) {
  const style = `--own:${colour(line)}`, group = shape("g", { class: "series", style });
  const path = points.map((point, place) => `${place ? "L" : "M"}${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`).join("");
  if (points.some((point) => point.half)) {
    const edge = (sign) => points.map((point) => `${x(point.x).toFixed(1)},${y(point.y + sign * point.half).toFixed(1)}`);
    group.append(shape("polygon", { class: "band", points: [...edge(1), ...edge(-1).reverse()].join(" ") }));
  }
  group.append(shape("path", { class: "line", d: path, "stroke-dasharray": DASHES[line.look[1]] }));
  const every = Math.max(1, Math.floor(points.length / 8));
  points.forEach((point, place) => {
    if (place % every === 0) group.append(shape("path", { class: "marker", d: MARKERS[line.look[2]],
      transform: `translate(${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)})` }));
  });
  const target = shape("path", { class: "target", d: path });  // wide enough to be hit
  target.append(shape("title", {}, `${line.label}: click to hide`));
  target.addEventListener("click", () => hide(line));
  group.append(target);
  chart.append(group);
}

function draw() {
  const series = chosenAxis.value === "epsilon" ? byEpsilon() : byRound();
  chart.replaceChildren();
  leave();
  document.getElementById("nothing").hidden = series.length > 0;
  document.getElementById("kind").textContent = measure().released ? "released" : "diagnostic, not private";
  chart.style.display = series.length ? "block" : "none";
  drawn = { series, places: [] };
  if (!series.length) return;
  drawn = { series, ...scales(series) };
  chart.setAttribute("viewBox", `0 0 ${drawn.width} ${drawn.height}`);
  chart.setAttribute("aria-label", `${measure().title} over ${chosenAxis.value}s of ${series.map((entry) => entry.line.label).join("; ")}`);
  drawAxes(drawn);
  for (const entry of series) drawSeries(entry, drawn);
  chart.append(shape("g", { id: "pointer" }));
}

function point(place) {  // show the values at one of the places
  at = Math.max(0, Math.min(drawn.places.length - 1, place));
  const where = drawn.places[at], x = drawn.x(where);
  const hits = drawn.series.flatMap(({ line, points }) => points.filter((entry) => entry.x === where).map((entry) => ({ line, ...entry })));
  hits.sort((one, two) => two.y - one.y);
  const pointer = document.getElementById("pointer");
  pointer.replaceChildren(shape("line", { class: "axis", x1: x, x2: x, y1: MARGIN.top, y2: drawn.height - MARGIN.bottom }));
  for (const hit of hits) pointer.append(shape("circle", { class: "hit", cx: x, cy: drawn.y(hit.y), r: 4, style: `--own:${colour(hit.line)}` }));
  const head = chosenAxis.value === "epsilon" ? `epsilon ${data.lines.find((line) => line.epsilon === where).tick}` : `round ${where}`;
  tip.replaceChildren(element("strong", {}, head), ...hits.map((hit) => {
    const mark = element("span", { className: "swatch" });
    mark.style.background = colour(hit.line);
    const value = written(hit.y) + (hit.half ? ` ± ${percentage() ? hit.half.toFixed(1) : +hit.half.toPrecision(2)}` : "");
    return element("div", {}, mark, element("span", {}, hit.line.label), element("b", {}, value));
  }));
  tip.hidden = false;
  const room = chart.parentElement.clientWidth - tip.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(room, x > drawn.width / 2 ? x - tip.offsetWidth - 12 : x + 12))}px`;
}

function leave() { at = -1; tip.hidden = true; document.getElementById("pointer")?.replaceChildren(); }

function hide(line) {
  const alone = chosenAxis.value === "round";
  data.lines.forEach((other, place) => {
    if (alone ? other.label === line.label : other.method === line.method) choose(place, false);
  });
  draw();
}

function choose(place, wanted) {
  if (wanted) shown.add(place); else shown.delete(place);
  document.getElementById(`run-${place}`).checked = wanted;
}

function pick(line, place) {
  const box = element("input", { type: "checkbox", id: `run-${place}` });
  box.addEventListener("change", () => { choose(place, box.checked); draw(); });
  const mark = shape("svg", { class: "mark", viewBox: "0 0 30 12", "aria-hidden": "true", style: `--own:${colour(line)}` });
  mark.append(shape("path", { class: "line", d: "M0,6H30", "stroke-dasharray": DASHES[line.look[1]] }));
  mark.append(shape("path", { class: "marker", d: MARKERS[line.look[2]], transform: "translate(15 6)" }));
  const text = element("span", {}, line.label, element("small", {}, line.promise));
  return element("label", {}, box, mark, text);
}

function explore() {
  const list = document.getElementById("runs"), filter = document.getElementById("find");
  for (const entry of data.measures) chosenMeasure.append(element("option", { value: entry.key }, entry.title));
  const epsilons = new Set(data.lines.map((line) => line.epsilon).filter((epsilon) => epsilon !== null));
  for (const name of epsilons.size > 1 ? ["round", "epsilon"] : ["round"]) chosenAxis.append(element("option", { value: name }, `over ${name}s`));
  list.append(...data.lines.map(pick));
  const order = data.lines.map((line, place) => place).sort((one, two) => last(data.lines[two]) - last(data.lines[one]));
  for (const place of order.slice(0, SHOWN_FIRST)) choose(place, true);
  filter.hidden = data.lines.length < 5;
  document.getElementById("some").hidden = data.lines.length <= SHOWN_FIRST;
  document.getElementById("surveys").hidden = !data.lines.some((line) => line.label.includes("+ survey"));
  document.getElementById("bands").hidden = !data.lines.some((line) => Object.values(line.values).some(([, , halves]) => halves));
  filter.addEventListener("input", () => [...list.children].forEach((label) => {
    label.hidden = !label.textContent.toLowerCase().includes(filter.value.toLowerCase());
  }));
  const every = (wanted) => { [...list.children].forEach((label, place) => label.hidden || choose(place, wanted)); draw(); };
  document.getElementById("all").addEventListener("click", () => every(true));
  document.getElementById("none").addEventListener("click", () => every(false));
  for (const control of [chosenMeasure, chosenAxis]) control.addEventListener("change", draw);
  const follow = (event) => {
    if (!drawn.places.length) return;
    const x = (event.clientX - chart.getBoundingClientRect().left) * drawn.width / chart.getBoundingClientRect().width;
    const far = drawn.places.map((place) => Math.abs(drawn.x(place) - x));
    point(far.indexOf(Math.min(...far)));
  };
  chart.addEventListener("pointermove", follow);
  chart.addEventListener("pointerdown", follow);
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && drawn.places.length) { event.preventDefault(); point(at < 0 ? 0 : at + step); }
    if (event.key === "Escape") leave();
  });
  document.getElementById("explore").hidden = false;
  addEventListener("resize", draw);
  draw();
}

if (data.measures && data.measures.length) explore();
