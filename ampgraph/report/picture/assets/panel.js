"use strict";
// What stands beside the graph: what is under the mouse or was clicked, search, reasons, errors, the report.
const about = document.getElementById("about");
let pinned = null;

function tag(name, words, parent, className) {
  const made = document.createElement(name);
  if (words !== undefined && words !== null) made.textContent = words; // names are a model's: never as markup
  if (className) made.className = className;
  if (parent) parent.append(made);
  return made;
}
function rows(pairs) {
  const table = tag("dl");
  for (const [key, value] of pairs) {
    if (value === "" || value === null || value === undefined) continue;
    tag("dt", key, table);
    tag("dd", value, table);
  }
  return table;
}
const bytes = (count) => (count ? `${count.toLocaleString("en")} bytes` : "");

function describeNode(node) {
  const made = document.createDocumentFragment();
  tag("h2", node.name, made);
  const path = above(FOLDERS[node.folder]).slice(0, -1).reverse().map((folder) => folder.name).join(" / ");
  made.append(rows([
    ["operator", node.kind], ["layer", path], ["precision", node.precision],
    ["decided by", node.guarded ? `guard ${node.rule}` : node.rule], ["because", node.reason], ["range", node.span],
    ["weights read", bytes(node.bytes)], ["runs on", node.runs], ["as one kernel", node.kernel && kernelName(node.kernel)],
    [DATA.heat ? DATA.heat.title : "", heat.has(node.id) ? heat.get(node.id).toPrecision(3) : ""],
  ]));
  if (node.kernel && node.kernel.nodes.length > 1) {
    tag("h3", "together with", made);
    const list = tag("ul", null, made, "links");
    for (const id of node.kernel.nodes.filter((id) => id !== node.id).slice(0, 20)) linked(NODES[id], list);
  }
  for (const [title, lines, other] of [["reads", node.reads, "source"], ["is read by", node.feeds, "target"]]) {
    if (lines.length === 0) continue;
    tag("h3", title, made);
    const list = tag("ul", null, made, "links");
    for (const line of lines.slice(0, 20)) {
      const item = linked(NODES[line[other]], list);
      tag("span", ` ${line.value} ${type(line)}`, item, line.cast ? "cast-name" : "small");
      if (other === "source" && NODES[line.source].span) tag("span", ` (${NODES[line.source].span})`, item, "small");
    }
    if (lines.length > 20) tag("li", `and ${lines.length - 20} more`, list);
  }
  return made;
}
function linked(node, list) {
  const item = tag("li", null, list);
  tag("button", node.name, item).addEventListener("click", () => goTo(node));
  return item;
}
const kernelName = (kernel) => `${kernel.kind}, #${kernel.id + 1}, of ${kernel.nodes.length} ${kernel.nodes.length === 1 ? "node" : "nodes"}`;
const type = (line) => `${line.dtype}${line.shape ? ` [${line.shape}]` : ""}${line.cast ? ` → ${line.cast}` : ""}`;

/** The operators of a folder, the most frequent first. */
function operators(folder) {
  const found = new Map();
  const waiting = [folder];
  while (waiting.length) {
    const next = waiting.pop();
    for (const node of next.nodes) if (!["input", "output"].includes(node.kind)) found.set(node.kind, (found.get(node.kind) || 0) + 1);
    waiting.push(...next.folders);
  }
  const most = [...found].sort((a, b) => b[1] - a[1]);
  const rest = most.length > 8 ? `, and ${most.length - 8} kinds more` : "";
  return most.slice(0, 8).map(([kind, count]) => `${count.toLocaleString("en")} ${kind}`).join(", ") + rest;
}
function describeFolder(folder) {
  const made = document.createDocumentFragment();
  tag("h2", folder.name, made);
  const counts = Object.entries(folder.counts).map(([precision, count]) => `${count.toLocaleString("en")} ${precision}`);
  made.append(rows([
    ["nodes", counts.join(", ")], ["operators", operators(folder)], ["reads via Casts", folder.casts ? folder.casts.toLocaleString("en") : ""],
    [folder.id ? "weights read" : "", folder.id ? bytes(folder.bytes) : ""],
    ["held by guards", folder.guarded ? folder.guarded.toLocaleString("en") : ""],
  ]));
  return made;
}
function describeLine(line) {
  const made = document.createDocumentFragment();
  tag("h2", line.cast ? `Cast to ${line.type}` : line.type, made);
  const list = tag("ul", null, made, "links");
  for (const one of line.lines.slice(0, 30)) tag("li", `${one.value}: ${type(one)}`, list);
  if (line.lines.length > 30) tag("li", `and ${line.lines.length - 30} more`, list);
  return made;
}

function glance(content) {
  if (pinned === null) about.replaceChildren(content);
}
function pick(key, content) {
  pinned = content;
  selected = key;
  about.replaceChildren(content);
  mark();
}
function mark() {
  for (const old of world.querySelectorAll(".selected")) old.classList.remove("selected");
  const found = selected && world.querySelector(`[data-key="${selected}"]`);
  if (found) found.classList.add("selected");
}
function goTo(node) {
  open(FOLDERS[node.folder]);
  selected = `n${node.id}`;
  draw();
  pick(selected, describeNode(node));
  centre(selected);
}
canvas.addEventListener("click", () => { pinned = null; selected = null; mark(); });

// -- search ------------------------------------------------------------------------------------------------------------
const search = document.getElementById("search");
const results = document.getElementById("results");
function offer(found, words) {
  results.replaceChildren();
  for (const node of found.slice(0, 50)) {
    const link = tag("button", node.name, tag("li", null, results));
    tag("span", ` ${node.kind} ${node.precision}`, link, "small");
    link.addEventListener("click", () => goTo(node));
  }
  if (found.length > 50) tag("li", `and ${(found.length - 50).toLocaleString("en")} more`, results);
  if (found.length === 0 && words) tag("li", "nothing by that name", results);
}
search.addEventListener("input", () => {
  const words = search.value.trim().toLowerCase();
  const fits = (node) => `${node.name} ${node.kind}`.toLowerCase().includes(words);
  offer(words ? NODES.filter(fits) : [], words);
});
search.addEventListener("keydown", (event) => {
  const first = results.querySelector("button");
  if (event.key === "Enter" && first) first.click();
});

// -- the verdict, and reasons: which rules decided, and where ----------------------------------------------------------------------------
const verdict = document.getElementById("verdict");
verdict.textContent = DATA.verdict.words;
verdict.hidden = !DATA.verdict.words;
if (!DATA.verdict.met) verdict.className = "missed";
const rules = new Map();
const decided = NODES.some((node) => node.rule);
for (const node of NODES) {
  if (!decided || ["input", "output"].includes(node.kind)) continue;
  const key = `${node.precision}, ${node.rule || "as it was"}`;
  if (!rules.has(key)) rules.set(key, []);
  rules.get(key).push(node);
}
const reasons = document.getElementById("reasons");
for (const [key, found] of [...rules].sort((a, b) => b[1].length - a[1].length)) {
  const link = tag("button", `${found.length.toLocaleString("en")} ${key}`, tag("li", null, reasons));
  link.addEventListener("click", () => offer(found, key));
}
if (rules.size === 0) tag("li", "the file says no reasons", reasons);

// -- guards that held a node, and what the target's runtime makes of the nodes ---------------------------------------------
const guards = document.getElementById("guards");
for (const rule of DATA.guards.rules) {
  const held = NODES.filter((node) => node.guarded && node.rule === rule);
  const link = tag("button", `${held.length.toLocaleString("en")} held by guard ${rule}`, tag("li", null, guards.querySelector("ul")));
  link.addEventListener("click", () => offer(held, rule));
}
if (DATA.guards.said) tag("li", DATA.guards.said, guards.querySelector("ul"), "small");
guards.hidden = !DATA.guards.rules.length && !DATA.guards.said;
if (DATA.target) {
  const box = document.getElementById("target");
  box.hidden = false;
  box.querySelector("h3").textContent = DATA.target.title;
  const sorts = new Map();
  for (const kernel of KERNELS) sorts.set(kernel.kind, [...(sorts.get(kernel.kind) || []), kernel]);
  for (const [kind, found] of [...sorts].sort((a, b) => b[1].length - a[1].length)) {
    const nodes = found.flatMap((kernel) => kernel.nodes.map((id) => NODES[id]));
    const words = `${found.length.toLocaleString("en")} ${kind} of ${nodes.length.toLocaleString("en")} nodes`;
    tag("button", words, tag("li", null, box.querySelector("ul"))).addEventListener("click", () => offer(nodes, kind));
  }
  for (const [provider, ids] of Object.entries(DATA.target.elsewhere || {})) {
    const link = tag("button", `${ids.length.toLocaleString("en")} on ${provider}`, tag("li", null, box.querySelector("ul")));
    link.addEventListener("click", () => offer(ids.map((id) => NODES[id]), provider));
  }
  const gone = (DATA.target.gone || []).map((id) => NODES[id]);
  if (gone.length) {
    const link = tag("button", `${gone.length.toLocaleString("en")} nowhere: folded`, tag("li", null, box.querySelector("ul")));
    link.addEventListener("click", () => offer(gone, "nowhere"));
  }
  if (!KERNELS.length && DATA.target.main !== undefined) tag("li", "no fused operators", box.querySelector("ul"), "small");
}

// -- errors by node ------------------------------------------------------------------------------------------------------
const heat = new Map(DATA.heat ? DATA.heat.nodes : []);
if (DATA.heat) {
  const box = document.getElementById("heat");
  box.hidden = false;
  document.getElementById("heat-title").textContent = DATA.heat.title;
  const most = Math.max(...heat.values(), Number.MIN_VALUE);
  const warm = (value) => `color-mix(in srgb, var(--hot) ${Math.round(8 + 92 * Math.sqrt(value / most))}%, var(--cold))`;
  document.getElementById("heat-on").addEventListener("change", (event) => {
    painted = event.target.checked ? new Map([...heat].map(([id, value]) => [id, warm(value)])) : null;
    draw();
  });
  const worst = [...heat].sort((a, b) => b[1] - a[1]).slice(0, 20);
  for (const [id, value] of worst) {
    const link = tag("button", NODES[id].name, tag("li", null, document.getElementById("worst")));
    tag("span", ` ${value.toPrecision(3)}`, link, "small");
    link.addEventListener("click", () => goTo(NODES[id]));
  }
}

// -- bars, the frontier, the report --------------------------------------------------------------------------------------
for (const { label, parts, words } of DATA.bars) {
  const row = tag("div", null, document.getElementById("bars"), "bar");
  tag("span", label, row);
  const line = tag("div", null, row, "parts");
  const whole = Math.max(DATA.scale[label] || 0, parts.reduce((sum, [, count]) => sum + count, 0), 1);
  for (const [precision, count] of parts) {
    const part = tag("i", null, line, `part ${classOf(precision)}`);
    part.style.width = `${(100 * count) / whole}%`;
    part.title = `${count.toLocaleString("en")} ${precision}`;
  }
  tag("span", words, row, "small");
}
function frontier(points) {
  const plot = document.getElementById("plot");
  plot.hidden = false;
  const drawing = element("svg", { viewBox: "0 0 320 180", role: "img", "aria-label": "error against float32 bytes" }, plot);
  const finite = points.filter((point) => point.error !== null && point.error > 0);
  const most = Math.max(1, ...points.map((point) => point.bytes));
  const logs = finite.map((point) => Math.log10(point.error));
  const [low, high] = [Math.min(...logs) - 0.2, Math.max(...logs) + 0.2];
  const x = (point) => 40 + (260 * point.bytes) / most;
  const y = (point) => 12 + (136 * (high - Math.log10(point.error))) / Math.max(high - low, 1e-9);
  element("path", { d: "M40,8V152H310", class: "axis" }, drawing);
  element("text", { x: 175, y: 174, class: "small" }, drawing, "bytes in float32");
  element("text", { x: 2, y: 14, class: "small" }, drawing, "error");
  for (const point of finite) {
    const dot = element("circle", { cx: x(point), cy: y(point), r: point.chosen ? 5 : 3, class: point.chosen ? "chosen" : "point" }, drawing);
    element("title", {}, dot, `${point.step}: error ${point.error.toPrecision(3)}, ${point.bytes.toLocaleString("en")} bytes`);
    if (point.chosen) element("text", { x: x(point) + 7, y: y(point) - 5, class: "small" }, drawing, point.error.toPrecision(2));
  }
}
if (DATA.frontier.length) frontier(DATA.frontier);
for (const [shown, sign, words] of [[DATA.guards.rules.length, "◆", "guard"], [KERNELS.length, "#", "one kernel"]]) {
  if (shown) tag("span", `${sign} ${words}`, document.querySelector(".legend"));
}
document.getElementById("report").textContent = DATA.report.join("\n");

document.getElementById("fit").addEventListener("click", () => fit());
document.getElementById("in").addEventListener("click", () => zoom(1.3, canvas.clientWidth / 2, canvas.clientHeight / 2));
document.getElementById("out").addEventListener("click", () => zoom(1 / 1.3, canvas.clientWidth / 2, canvas.clientHeight / 2));
document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme.trim() === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
document.addEventListener("keydown", (event) => {
  if (event.target === search) return;
  if (event.key === "/") { event.preventDefault(); search.focus(); }
  if (event.key === "Escape") { pinned = null; selected = null; mark(); }
  if (event.key === "0") fit();
  if (event.key === "+") zoom(1.3, canvas.clientWidth / 2, canvas.clientHeight / 2);
  if (event.key === "-") zoom(1 / 1.3, canvas.clientWidth / 2, canvas.clientHeight / 2);
});

openAtFirst();
draw();
fit(READABLE);
about.replaceChildren(describeFolder(FOLDERS[0]));
document.documentElement.dataset.ready = "yes";
