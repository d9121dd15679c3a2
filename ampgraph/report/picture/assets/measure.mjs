// How far an output is from its reference: what `compare_outputs` of ampgraph/numerics/metrics/agreement.py says, number for number.
export const FLOOR = 1e-3;

/** The numbers of a tensor as float64; float16 may come as its 16 bits. */
export function numbers(dtype, data) {
  if (dtype === "float16" && data instanceof Uint16Array) return Float64Array.from(data, half);
  return Float64Array.from(data, Number);
}
function half(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

const FLOATS = ["float16", "float32", "float64"];

/** {error, maxAbs, compared, mismatches, silent, reason} of one output of one sample: `want` and `got` are {dtype, shape, data}. */
export function apart(want, got) {
  if (want.shape.join() !== got.shape.join()) {
    return { ...NOTHING, error: Infinity, maxAbs: Infinity, reason: `shape [${got.shape}] instead of [${want.shape}]` };
  }
  if (FLOATS.includes(want.dtype) && FLOATS.includes(got.dtype)) return floats(numbers(want.dtype, want.data), numbers(got.dtype, got.data));
  const [ours, theirs] = [Array.from(want.data), Array.from(got.data)];
  const differ = ours.filter((value, i) => value !== theirs[i]).length;
  return { ...NOTHING, error: ours.length ? differ / ours.length : 0, maxAbs: Number(differ > 0), compared: ours.length };
}
const NOTHING = { error: 0, maxAbs: 0, compared: 0, mismatches: 0, silent: false, reason: "" };

function floats(want, got) {
  let [mismatches, kept, known, scale, maxAbs] = [0, 0, 0, 0, 0];
  for (let i = 0; i < want.length; i++) {
    const [a, b] = [want[i], got[i]];
    known += Number.isFinite(a);
    if (Number.isFinite(a) && Number.isFinite(b)) {
      kept += 1;
      scale = Math.max(scale, Math.abs(a));
      maxAbs = Math.max(maxAbs, Math.abs(a - b));
    } else if (!(a === b || (Number.isNaN(a) && Number.isNaN(b)))) mismatches += 1;
  }
  scale = scale || 1; // squares of huge numbers must not overflow
  let [size, off] = [0, 0];
  for (let i = 0; i < want.length; i++) {
    if (!Number.isFinite(want[i]) || !Number.isFinite(got[i])) continue;
    size += (want[i] / scale) ** 2;
    off += ((want[i] - got[i]) / scale) ** 2;
  }
  const silent = want.length > 0 && known === 0;
  const least = (FLOOR * Math.sqrt(kept)) / scale;
  const error = mismatches || silent ? Infinity : kept ? Math.sqrt(off) / Math.max(Math.sqrt(size), least) : 0;
  return { error, maxAbs, compared: kept, mismatches, silent, reason: "" };
}

/** An error that occurred: of 8 samples the 90th percentile is the eighth. */
export const quantile = (errors, share) => [...errors].sort((a, b) => a - b)[Math.max(0, Math.ceil(share * errors.length) - 1)];

/** Median, 90th percentile and worst of an output's samples; those in which the reference has nothing finite say nothing. */
export function summed(samples) {
  const heard = samples.filter((one) => !one.silent);
  const errors = (heard.length ? heard : samples).map((one) => one.error);
  return { median: quantile(errors, 0.5), p90: quantile(errors, 0.9), worst: Math.max(...errors) };
}
