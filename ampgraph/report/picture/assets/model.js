"use strict";
// What the page knows: folders of nodes, which of them are open, and what is therefore seen.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ELEMENTS = 300; // boxes drawn at once; folders that were opened first are closed beyond it
const EDGES = 900; // lines drawn at once
const AT_FIRST = 24; // boxes drawn when the page opens

const text = (index) => DATA.strings[index];
const NODES = DATA.nodes.map(([name, kind, precision, rule, reason, bytes, folder], id) => ({
  id, name: text(name), kind: text(kind), precision: text(precision), rule: text(rule), reason: text(reason), bytes,
  folder, reads: [], feeds: [], span: id in DATA.spans ? text(DATA.spans[id]) : "", runs: "", kernel: null,
  guarded: text(precision) === "float32" && DATA.guards.rules.includes(text(rule)),
}));
const LINES = DATA.edges.map(([source, target, value, dtype, shape, cast], id) => ({
  id, source, target, value: text(value), dtype: text(dtype), shape: text(shape), cast: text(cast),
}));
for (const line of LINES) {
  NODES[line.target].reads.push(line);
  NODES[line.source].feeds.push(line);
}
const KERNELS = DATA.target ? DATA.target.kernels.map(([kind, provider, nodes], id) => ({ id, kind, provider, nodes })) : [];
if (DATA.target && DATA.target.main !== undefined) {
  for (const node of NODES) if (!["input", "output"].includes(node.kind)) node.runs = DATA.target.main;
  for (const [provider, nodes] of Object.entries(DATA.target.elsewhere)) for (const id of nodes) NODES[id].runs = provider;
  for (const id of DATA.target.gone) NODES[id].runs = "nowhere: folded, or part of what is not drawn";
  for (const kernel of KERNELS) for (const id of kernel.nodes) NODES[id].kernel = kernel;
}
const FOLDERS = DATA.folders.map(([name, parent], id) => ({
  id, name: text(name), parent, folders: [], nodes: [], counts: {}, total: 0, bytes: 0, casts: 0, guarded: 0, opened: 0,
}));
for (const folder of FOLDERS.slice(1)) FOLDERS[folder.parent].folders.push(folder);
for (const node of NODES) FOLDERS[node.folder].nodes.push(node);

function above(folder) {
  const path = [folder];
  while (folder.id !== 0) path.push((folder = FOLDERS[folder.parent]));
  return path;
}
for (const node of NODES) {
  const border = node.kind === "input" || node.kind === "output";
  const casts = node.reads.filter((line) => line.cast).length;
  for (const folder of above(FOLDERS[node.folder])) {
    if (!border) {
      folder.counts[node.precision] = (folder.counts[node.precision] || 0) + 1;
      folder.total += 1;
    }
    folder.bytes += node.bytes;
    folder.casts += casts;
    folder.guarded += node.guarded;
  }
}

let clock = 1;
const size = (folder) => folder.folders.length + folder.nodes.length;
const isOpen = (folder) => folder.opened > 0 && (folder.id === 0 || isOpen(FOLDERS[folder.parent]));
const drawn = () => FOLDERS.filter(isOpen).reduce((sum, folder) => sum + size(folder), 0);

/** Opens a folder and those around it; what was opened longest ago is closed while too much would be drawn. */
function open(folder) {
  const path = above(folder);
  for (const part of path) part.opened = clock;
  clock += 1;
  while (drawn() > ELEMENTS) {
    const others = FOLDERS.filter((other) => isOpen(other) && !path.includes(other) && other.folders.every((f) => !isOpen(f)));
    if (others.length === 0) break;
    others.reduce((oldest, other) => (other.opened < oldest.opened ? other : oldest)).opened = 0;
  }
}
function close(folder) {
  if (folder.id !== 0) folder.opened = 0;
}
/** Opens the root, and what is in it while the picture stays small; a folder that all else is in always. */
function openAtFirst() {
  open(FOLDERS[0]);
  for (let found = true; found; ) {
    const shut = FOLDERS.filter((folder) => !isOpen(folder) && isOpen(FOLDERS[folder.parent]));
    const alone = drawn() - NODES.filter((node) => node.folder === 0 && ["input", "output"].includes(node.kind)).length === 1;
    const next = shut.find((folder) => alone || drawn() + size(folder) <= AT_FIRST);
    if ((found = next !== undefined)) open(next);
  }
}

/** The box that stands for a node: itself, or the outermost folder around it that is closed. */
function shownAs(node) {
  const path = above(FOLDERS[node.folder]).reverse();
  const shut = path.find((folder) => !isOpen(folder));
  return shut ? `f${shut.id}` : `n${node.id}`;
}
/** Lines between boxes, those between the same two and of one type as one. */
function shownLines() {
  const found = new Map();
  const names = NODES.map(shownAs);
  for (const line of LINES) {
    const [from, to] = [names[line.source], names[line.target]];
    if (from === to) continue;
    const type = line.cast || line.dtype;
    const key = `${from} ${to} ${type} ${line.cast ? line.dtype : ""}`;
    if (!found.has(key)) found.set(key, { from, to, type, cast: line.cast !== "", lines: [] });
    found.get(key).lines.push(line);
  }
  const all = [...found.values()].sort((a, b) => b.cast - a.cast);
  return { lines: all.slice(0, EDGES), left: Math.max(0, all.length - EDGES) };
}
