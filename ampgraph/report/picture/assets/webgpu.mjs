// Runs both models on the samples that verify ran, and says how far each is from the float32 results that lie beside it.
import { apart, quantile, summed } from "./measure.mjs";

const ROUNDS = 10; // runs of each model that are timed, in turn,
const LONGEST = 20000; // as far as they come in so many milliseconds
const at = (id) => document.getElementById(id);
const say = (words) => { at("state").textContent = words; };
const state = (word) => { document.body.dataset.state = word; };
const SIDES = ["reference", "model"];
let page, ort;

/** What the browser's GPU is; null where it has none that is offered. */
async function adapter() {
  const found = navigator.gpu && (await navigator.gpu.requestAdapter().catch(() => null));
  if (!found) return null;
  const info = found.info || {};
  const name = [info.vendor, info.architecture, info.device, info.description].filter(Boolean).join(" ") || "a GPU without a name";
  return { name, half: found.features.has("shader-f16") };
}

async function start() {
  page = await (await fetch("page.json")).json();
  document.title = `${page.model.name} against ${page.reference.name}`;
  at("title").textContent = document.title;
  const megabytes = (side) => `${(page[side].bytes / 1e6).toFixed(1)} MB`;
  at("pair").textContent = `${page.reference.name} (${megabytes("reference")}) and ${page.model.name} (${megabytes("model")}), `
    + `${page.samples.length} ${page.samples.length === 1 ? "sample" : "samples"}, tolerance ${page.tolerance}; ${page.runtime}`;
  at("report").textContent = page.report.join("\n");
  ort = await import(`./onnxruntime-web/${page.module}`);
  ort.env.logLevel = "error";
  const gpu = await adapter();
  page.gpu = gpu;
  at("gpu").textContent = gpu === null
    ? "This browser offers no WebGPU adapter: nothing can be said about a GPU here. Another browser may, or a setting of this one "
      + "(chrome://gpu, about:support). The CPU shows whether the files load and what they give there."
    : `WebGPU runs on ${gpu.name}${gpu.half ? "" : ", which has no float16 shaders (shader-f16): a float16 model cannot run on it"}.`;
  at("webgpu").disabled = gpu === null;
  at("wasm").disabled = false;
  for (const provider of ["webgpu", "wasm"]) at(provider).addEventListener("click", () => compare(provider));
  say("Nothing was run yet.");
  state("ready");
  const asked = location.hash.slice(1);
  if (["webgpu", "wasm"].includes(asked) && !at(asked).disabled) await compare(asked);
}

// -- tensors ------------------------------------------------------------------------------------------------------------
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
};
const count = (shape) => shape.reduce((product, size) => product * size, 1);

/** {dtype, shape, data} of an entry of page.json, out of its sample's file. */
function stored(entry, bytes) {
  const data = entry.values || new ARRAYS[entry.dtype](bytes, entry.offset, count(entry.shape));
  return { dtype: entry.dtype, shape: entry.shape, data };
}
function fed({ dtype, shape, data }) {
  const halves = dtype === "float16" && globalThis.Float16Array ? new Float16Array(data.buffer, data.byteOffset, data.length) : data;
  return new ort.Tensor(dtype, halves, shape);
}

// -- runs ---------------------------------------------------------------------------------------------------------------
class Side {
  constructor(name) { Object.assign(this, { name, fault: "", session: null, times: [], opened: 0, first: 0, parts: {} }); }

  /** Opens the model; where it cannot be, `fault` says why. */
  async open(provider) {
    const { file, data } = page[this.name];
    const begun = performance.now();
    await this.guarded(async () => {
      const externalData = data.map((path) => ({ path, data: `${this.name}/${path}` }));
      this.session = await ort.InferenceSession.create(`${this.name}/${file}`, { executionProviders: [provider], externalData, logSeverityLevel: 3 });
    });
    this.opened = performance.now() - begun;
  }

  /** The outputs on a sample by name, with the time; null where it has failed. */
  async run(feeds) {
    const tensors = Object.fromEntries(Object.entries(feeds).map(([name, one]) => [name, fed(one)]));
    const begun = performance.now();
    const outputs = await this.guarded(() => this.session.run(tensors));
    return outputs && { outputs, time: performance.now() - begun };
  }

  async guarded(work) {
    if (this.fault) return null;
    try {
      return await work();
    } catch (error) {
      this.fault = String(error.message || error).trim() || "it failed without a word";
      return null;
    }
  }

  close() { if (this.session) this.session.release(); }
}

async function compare(provider) {
  state("running");
  for (const id of ["webgpu", "wasm"]) at(id).disabled = true;
  const sides = SIDES.map((name) => new Side(name));
  for (const side of sides) {
    say(`opening ${page[side.name].name} ...`);
    await side.open(provider);
  }
  let first = null;
  for (const [number, sample] of page.samples.entries()) {
    say(`sample ${number + 1} of ${page.samples.length} ...`);
    const bytes = await (await fetch(sample.file)).arrayBuffer();
    for (const side of sides) await hear(side, sample, bytes, number);
    first = first || { sample, bytes };
  }
  await timed(sides, first);
  show(provider, sides);
  for (const side of sides) side.close();
  at("webgpu").disabled = page.gpu === null;
  at("wasm").disabled = false;
  state("done");
}

const feedsOf = (side, sample, bytes) => Object.fromEntries(sample[side.name].map((entry) => [entry.name, stored(entry, bytes)]));

/** One model on one sample, beside what was expected of it. */
async function hear(side, sample, bytes, number) {
  const ran = await side.run(feedsOf(side, sample, bytes));
  if (!ran) return;
  if (number === 0) side.first = ran.time;
  for (const entry of sample.expected) {
    const got = ran.outputs[entry.name];
    const part = apart(stored(entry, bytes), { dtype: got.type, shape: [...got.dims], data: got.data });
    (side.parts[entry.name] = side.parts[entry.name] || []).push(part);
  }
  for (const tensor of Object.values(ran.outputs)) tensor.dispose();
}

/** Runs of the first sample, the models in turn, so that what else the machine does meets both. */
async function timed(sides, { sample, bytes }) {
  const begun = performance.now();
  for (let round = 0; round < ROUNDS && (round === 0 || performance.now() - begun < LONGEST); round++) {
    say(`timing, ${round + 1} of ${ROUNDS} ...`);
    for (const side of sides) {
      const ran = await side.run(feedsOf(side, sample, bytes));
      if (!ran) continue;
      side.times.push(ran.time);
      for (const tensor of Object.values(ran.outputs)) tensor.dispose();
    }
  }
}

// -- what is shown ------------------------------------------------------------------------------------------------------
const error = (value) => (value === undefined ? "" : Number.isFinite(value) ? value.toExponential(2) : "infinite");
const milliseconds = (value) => `${value.toPrecision(3)} ms`;

function row(table, cells, sort = "td") {
  const made = document.createElement("tr");
  for (const cell of cells) {
    const box = document.createElement(sort);
    box.textContent = cell.words === undefined ? cell : cell.words; // names are a model's: never as markup
    if (cell.missed) box.className = "missed";
    made.append(box);
  }
  table.append(made);
}

function show(provider, sides) {
  const where = provider === "webgpu" ? `WebGPU, on ${page.gpu.name}` : "the CPU, by WebAssembly";
  const [reference, model] = sides;
  const found = Object.fromEntries(sides.map((side) => [side.name, Object.fromEntries(Object.entries(side.parts).map(([name, parts]) => [name, summed(parts)]))]));
  const names = page.samples[0].expected.map((entry) => entry.name);
  at("errors").replaceChildren();
  row(at("errors"), ["output", "original here", "converted here: median", "90th percentile", "worst", "verify, where it was made"], "th");
  for (const name of names) {
    const [ours, theirs] = SIDES.map((side) => found[side][name] || {});
    const over = (value) => ({ words: error(value), missed: value > page.tolerance });
    const failed = (side) => ({ words: `could not run: ${side.fault}`, missed: true });
    const original = reference.fault ? failed(reference) : over(ours.p90);
    const converted = model.fault ? [failed(model), "", ""] : [error(theirs.median), over(theirs.p90), error(theirs.worst)];
    row(at("errors"), [name, original, ...converted, error(page.verified[name])]);
  }
  at("times").replaceChildren();
  row(at("times"), ["model", "opened in", "first run", "median", "least"], "th");
  for (const side of sides) {
    const cells = side.fault ? [{ words: side.fault, missed: true }, "", "", ""] : [side.opened, side.first, quantile(side.times, 0.5), Math.min(...side.times)].map(milliseconds);
    row(at("times"), [page[side.name].name, ...cells]);
  }
  at("measure").textContent = "Relative L2 from the float32 results of ONNX Runtime's CPU where this page was made, which are the same "
    + "for both models; of integers the share that differs. Held against the tolerance is the 90th percentile over the samples."
    + (page.samples[0].left_out.length ? ` Not compared, as it is no tensor of numbers: ${page.samples[0].left_out.join(", ")}.` : "");
  const ratio = model.fault || reference.fault ? "" : quantile(reference.times, 0.5) / quantile(model.times, 0.5);
  at("timing").textContent = `${ratio ? `The original takes ${ratio.toPrecision(3)} times as long as what was converted. ` : ""}Of ${Math.max(...sides.map((side) => side.times.length))} runs of the first sample, in turn; inputs go to the device and outputs come back in each.`;
  const missed = names.filter((name) => !(found.model[name] && found.model[name].p90 <= page.tolerance));
  const ended = model.fault ? "could not run" : missed.length ? `missed: ${missed.join(", ")}` : "ok";
  at("verdict").textContent = `${ended}, on ${provider === "webgpu" ? "WebGPU" : "the CPU"}`;
  at("verdict").className = ended === "ok" ? "" : "missed";
  const nothing = provider === "wasm" && page.low.length > 0;
  say(`Run on ${where}.${nothing ? ` It computes most of ${page.low.join(" and ")} in float32: this says nothing about a GPU.` : ""}`);
  at("results").hidden = false;
  save({ provider, where, userAgent: navigator.userAgent, verdict: ended, errors: found, tolerance: page.tolerance, runtime: page.runtime,
    samples: Object.fromEntries(sides.map((side) => [side.name, Object.fromEntries(Object.entries(side.parts).map(([name, parts]) => [name, parts.map((part) => part.error)]))])),
    times: Object.fromEntries(sides.map((side) => [side.name, { opened: side.opened, first: side.first, runs: side.times, fault: side.fault }])) });
}

function save(found) {
  const words = JSON.stringify(found, (_, value) => (typeof value === "number" && !Number.isFinite(value) ? null : value), 1);
  document.body.dataset.found = words;
  at("save").href = `data:application/json,${encodeURIComponent(words)}`;
  at("save").hidden = false;
}

start().catch((fault) => {
  say(`The page's files cannot be read (${fault.message || fault}). Serve its folder: python -m http.server, then http://localhost:8000.`);
  state("failed");
});
