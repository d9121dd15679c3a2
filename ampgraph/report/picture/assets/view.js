"use strict";
// The graph as boxes and lines: laid out by dagre, drawn as SVG, moved and scaled by mouse, touch and keys.
const SVG = "http://www.w3.org/2000/svg";
const canvas = document.getElementById("canvas");
const world = document.getElementById("world");
const READABLE = 0.8;
let place = { x: 20, y: 20, scale: 1 };
let selected = null;
let painted = null; // node id -> colour, where something else than precision is shown

function element(name, attributes, parent, words) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  if (parent) parent.append(made);
  return made;
}
const short = (words, length) => (words.length <= length ? words : `${words.slice(0, length / 2 - 1)}…${words.slice(1 - length / 2)}`);
const classOf = (precision) => (["float16", "bfloat16", "float32", "float64"].includes(precision) ? precision : "other");

function boxes() {
  const found = [];
  for (const folder of FOLDERS.filter(isOpen)) {
    for (const inner of folder.folders) if (!isOpen(inner)) found.push({ key: `f${inner.id}`, parent: folder, folder: inner, width: 190, height: 46 });
    for (const node of folder.nodes) found.push({ key: `n${node.id}`, parent: folder, node, width: 150, height: 34 });
  }
  return found;
}

function layout(shown, lines) {
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 34, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const folder of FOLDERS.filter(isOpen)) if (folder.id !== 0) graph.setNode(`o${folder.id}`, {});
  for (const folder of FOLDERS.filter(isOpen)) {
    if (folder.id !== 0 && folder.parent !== 0) graph.setParent(`o${folder.id}`, `o${folder.parent}`);
  }
  for (const box of shown) {
    graph.setNode(box.key, { width: box.width, height: box.height });
    if (box.parent.id !== 0) graph.setParent(box.key, `o${box.parent.id}`);
  }
  for (const line of lines) graph.setEdge(line.from, line.to, {});
  dagre.layout(graph);
  return graph;
}

function draw() {
  const shown = boxes();
  const { lines, left } = shownLines();
  const graph = layout(shown, lines);
  world.replaceChildren();
  for (const folder of FOLDERS.filter(isOpen)) if (folder.id !== 0) drawOpen(folder, graph.node(`o${folder.id}`));
  for (const line of lines) drawLine(line, graph.edge(line.from, line.to).points);
  for (const box of shown) drawBox(box, graph.node(box.key));
  const note = document.getElementById("left");
  note.textContent = left ? `${left} lines are not drawn: close layers to see all` : "";
  move();
  mark();
}

function drawOpen(folder, at) {
  const group = element("g", { class: "open", "data-key": `o${folder.id}`, tabindex: 0 }, world);
  element("rect", { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height, rx: 8 }, group);
  element("text", { x: at.x - at.width / 2 + 8, y: at.y - at.height / 2 + 13 }, group, `− ${short(folder.name, 40)}`);
  group.addEventListener("click", (event) => { event.stopPropagation(); close(folder); redraw(at.x, at.y - at.height / 2, `f${folder.id}`); });
}

function drawLine(line, points) {
  const way = points.map((point, i) => `${i ? "L" : "M"}${point.x.toFixed(1)},${point.y.toFixed(1)}`).join("");
  const group = element("g", { class: line.cast ? "line cast" : `line ${classOf(line.type)}` }, world);
  element("path", { d: way, class: "grip" }, group);
  element("path", { d: way, class: "way", "marker-end": line.cast ? "url(#cast-end)" : "url(#end)" }, group);
  if (line.cast) {
    const middle = points[Math.floor(points.length / 2)];
    const words = `→ ${line.type}${line.lines.length > 1 ? ` ×${line.lines.length}` : ""}`;
    element("text", { x: middle.x + 5, y: middle.y - 3, class: "cast-name" }, group, words);
  }
  group.addEventListener("mouseenter", () => glance(describeLine(line)));
  group.addEventListener("click", (event) => { event.stopPropagation(); pick(null, describeLine(line)); });
}

function drawBox(box, at) {
  const [x, y] = [at.x - box.width / 2, at.y - box.height / 2];
  const group = element("g", { "data-key": box.key, tabindex: 0, role: "button" }, world);
  if (box.folder) {
    group.setAttribute("class", "folder");
    element("rect", { x, y, width: box.width, height: box.height, rx: 8, class: "frame" }, group);
    bar(box.folder, x + 8, y + box.height - 13, box.width - 16, group);
    element("text", { x: x + 8, y: y + 15 }, group, `+ ${short(box.folder.name, 27)}`);
    element("text", { x: x + 8, y: y + 29, class: "small" }, group, `${box.folder.total.toLocaleString("en")} ${box.folder.total === 1 ? "node" : "nodes"}${box.folder.casts ? `, ${box.folder.casts.toLocaleString("en")} via Casts` : ""}`);
  } else {
    const { node } = box;
    const sort = node.kind === "input" || node.kind === "output" ? "border" : "";
    group.setAttribute("class", `node ${classOf(node.precision)} ${sort} ${node.guarded ? "guarded" : ""} ${node.kernel ? "fused" : ""}`);
    const frame = element("rect", { x, y, width: box.width, height: box.height, rx: 5, class: "frame" }, group);
    if (painted) frame.style.fill = painted.get(node.id) || "var(--cold)";
    element("text", { x: x + 8, y: y + 14 }, group, short(node.kind.replace(/^.*::/, ""), node.kernel ? 16 : 20));
    element("text", { x: x + 8, y: y + 27, class: "small" }, group, short(node.name, 26));
    badges(node, x + box.width - 6, y + 13, group);
  }
  if (box.folder && box.folder.guarded) element("text", { x: x + box.width - 8, y: y + 15, class: "badge" }, group, `◆ ${box.folder.guarded}`);
  const about = () => (box.folder ? describeFolder(box.folder) : describeNode(box.node));
  const act = (event) => { event.stopPropagation(); pick(box.key, about()); if (box.folder) { open(box.folder); redraw(at.x, y, `o${box.folder.id}`); } };
  group.addEventListener("mouseenter", () => { glance(about()); mates(box.node && box.node.kernel); });
  group.addEventListener("mouseleave", () => mates(null));
  group.addEventListener("click", act);
  group.addEventListener("keydown", (event) => { if (event.key === "Enter") act(event); });
}

/** Signs of a node at its right: a guard holds it; it runs in one kernel with others, by the number of that kernel. */
function badges(node, x, y, parent) {
  const signs = [node.kernel ? `#${node.kernel.id + 1}` : "", node.guarded ? "◆" : ""].filter(Boolean);
  if (signs.length) element("text", { x, y, class: "badge" }, parent, signs.join(" "));
}

function bar(folder, x, y, width, parent) {
  for (const [precision, count] of Object.entries(folder.counts)) {
    const part = (width * count) / Math.max(folder.total, 1);
    element("rect", { x, y, width: part, height: 6, class: `part ${classOf(precision)}` }, parent);
    x += part;
  }
}

/** Frames all nodes that run in one kernel. */
function mates(kernel) {
  for (const old of world.querySelectorAll(".mate")) old.classList.remove("mate");
  for (const id of kernel ? kernel.nodes : []) {
    const found = world.querySelector(`[data-key="n${id}"]`);
    if (found) found.classList.add("mate");
  }
}

/** Draws again so that what has come of a box stands where the box stood. */
function redraw(x, y, key) {
  draw();
  const found = world.querySelector(`[data-key="${key}"]`);
  if (!found) return;
  const seen = found.getBBox();
  place.x += (x - seen.x - seen.width / 2) * place.scale;
  place.y += (y - seen.y) * place.scale;
  move();
}

// -- moving about ------------------------------------------------------------------------------------------------------
function move() {
  world.setAttribute("transform", `translate(${place.x} ${place.y}) scale(${place.scale})`);
}
function zoom(factor, x, y) {
  const scale = Math.min(4, Math.max(0.05, place.scale * factor));
  place = { x: x - ((x - place.x) * scale) / place.scale, y: y - ((y - place.y) * scale) / place.scale, scale };
  move();
}
/** Shows all, no smaller than ``least``: from the top then. */
function fit(least = 0.05) {
  const seen = world.getBBox();
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const scale = Math.max(least, Math.min(1.2, width / (seen.width + 40), height / (seen.height + 40)));
  place = { x: Math.max(10, (width - seen.width * scale) / 2) - seen.x * scale, y: 16 - seen.y * scale, scale };
  move();
}
function centre(key) {
  const found = world.querySelector(`[data-key="${key}"]`);
  if (!found) return;
  const seen = found.getBBox();
  place.scale = Math.max(place.scale, 0.8);
  place.x = canvas.clientWidth / 2 - (seen.x + seen.width / 2) * place.scale;
  place.y = canvas.clientHeight / 2 - (seen.y + seen.height / 2) * place.scale;
  move();
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const area = canvas.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY / 400), event.clientX - area.left, event.clientY - area.top);
}, { passive: false });
let held = null;
canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX - place.x, y: event.clientY - place.y }; });
window.addEventListener("pointermove", (event) => {
  if (!held || !event.buttons) return;
  place.x = event.clientX - held.x;
  place.y = event.clientY - held.y;
  move();
});
window.addEventListener("pointerup", () => { held = null; });
