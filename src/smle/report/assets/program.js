"use strict";
// Deployed programs, operation by operation as docs/certificate-format.md numbers them, in double arithmetic.

const WIDE = 2 ** 100;

const sparse = (row) => row.map((v, k) => [k, v]).filter(([, v]) => v !== 0);

function sumOf(form, values, offset) {
  let sum = null;
  for (const [k, v] of form) sum = sum === null ? v * values[k] : sum + v * values[k];
  return sum === null ? offset || 0 : offset === undefined ? sum : sum + offset;
}

function unpack(packed) {
  if (!packed) return null;
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const view = new DataView(bytes.buffer);
  const values = new Float64Array(bytes.length / 4);
  for (let i = 0; i < values.length; i++) values[i] = view.getFloat32(4 * i, true);
  return { values, shape: packed.shape };
}

// Rows of a matrix times x, plus bias; of a stack of matrices from `row` on, where the bias may have rows of its own.
function matVec(matrix, x, bias, row = 0, rows = bias.length, at = row) {
  const width = x.length, out = new Float64Array(rows);
  for (let i = 0; i < rows; i++) {
    let sum = bias[row + i];
    const start = (at + i) * width;
    for (let j = 0; j < width; j++) sum += matrix[start + j] * x[j];
    out[i] = sum;
  }
  return out;
}

const layersOf = (list) => list.map((l) => ({ weight: unpack(l.weight).values, bias: unpack(l.bias).values }));

function makeBackbone(data) {
  const shift = unpack(data.shift).values, scale = unpack(data.scale).values, layers = layersOf(data.layers);
  return (x) => {
    let z = Float64Array.from(x, (v, k) => (v - shift[k]) / scale[k]);
    layers.forEach((layer, i) => {
      z = matVec(layer.weight, z, layer.bias);
      if (i < layers.length - 1) for (let k = 0; k < z.length; k++) if (z[k] < 0) z[k] = 0;
    });
    return z;
  };
}

// One function per kind of operation, as smle_check/program.py lists them: (operation, its values and tensors) ->
// value, for one row. Packed tensors with several dimensions are { values, shape }.
const OPERATIONS = {
  clamp: (op, x, lower, upper) => Array.from(x, (v, k) => (!(v >= lower[k]) ? lower[k] : v > upper[k] ? upper[k] : v)),
  single: (op, x) => Array.from(x, Math.fround),
  wide: (op, x) => x,
  active: ({ fixed }, x, X, constants, coefficients, thresholds) => {
    const holds = fixed.comparisons.map(([column, negative, strict], i) => {
      const limit = negative ? -constants[i] : constants[i], v = x[column];
      return negative ? (strict ? v > limit : v >= limit) : strict ? v < limit : v <= limit;
    });
    (coefficients || []).forEach((row, i) => holds.push(sumOf(sparse(row), X) <= thresholds[i]));
    return fixed.members.map((rows) => rows.every((row) => holds[row]));
  },
  cell: (op, bits, signatures) => {
    const found = signatures.findIndex((row) => row.every((bit, i) => Boolean(bit) === bits[i]));
    const ones = signatures.map((row) => row.reduce((sum, bit) => sum + bit, 0));
    return found >= 0 ? found : ones.indexOf(Math.max(...ones));
  },
  hidden: (op, v, weight, bias) => matVec(weight.values, v, bias).map((sum) => Math.max(sum, 0)),
  affine: (op, v, slope, offset) => matVec(slope.values, v, offset),
  clip: (op, z, lower, upper) => z.map((v, k) => Math.max(Math.min(v, upper[k]), lower[k])),
  affine_at: (op, cell, v, weight, bias, x, slope, z, freeWeight, freeBias) => {
    const c = cell === null ? 0 : cell, [count, m] = weight.shape;
    if (c >= count) return matVec(freeWeight.values, z, freeBias);
    const y = matVec(weight.values, v, bias.values, c * m, m);
    return slope ? matVec(slope.values, x, y, 0, m, c * m) : y;
  },
  or_fallback: (op, y, cell, fallback) => {
    const c = cell === null ? 0 : cell, [count, m] = fallback.shape;
    return y.some(Number.isNaN) && c < count ? fallback.values.slice(c * m, (c + 1) * m) : y;
  },
  within: (op, t, fallback) => t.map((v, i) => (v >= -WIDE && v <= WIDE ? v : fallback[i])),
  raise_to: (op, q, bits, values, X, slopes) => moved(op, q, bits, values, X, slopes, (v, limit) => v < limit),
  lower_to: (op, q, bits, values, X, slopes) => moved(op, q, bits, values, X, slopes, (v, limit) => v > limit),
  narrow: (op, q) => q.map(Math.fround),
};

function moved({ fixed }, q, bits, values, X, slopes, beyond) {
  const out = [...q];
  fixed.outputs.forEach((output, i) => {
    if (!bits[fixed.bits[i]]) return;
    const limit = slopes ? sumOf(sparse(slopes[i]), X, values[i]) : values[i];
    if (beyond(out[output], limit)) out[output] = limit;
  });
  return out;
}

function runOperations(ops, tensors, env) {
  for (const op of ops) {
    env[op.out] = OPERATIONS[op.kind](op, ...op.args.map((name) => (name === null ? null : name in env ? env[name] : tensors[name])));
  }
  return env;
}

// A network behind a box.
function makeBox({ ops, tensors: packed }, network) {
  const tensors = {};
  for (const [name, value] of Object.entries(packed)) {
    const plain = Array.isArray(value) ? value : unpack(value);
    tensors[name] = plain.shape && plain.shape.length === 1 ? plain.values : plain;
  }
  const W = tensors["heads.weight"], b = tensors["heads.bias"].values, V = tensors["heads.passthrough"];
  const [count, m] = W.shape, last = ops[ops.length - 1].out;
  return function run(raw) {
    const z = network(raw), env = runOperations(ops, tensors, { features: raw, answer: z });
    const cell = env.cell === undefined ? 0 : env.cell, answer = { x: env.x, cell, on: env.bits || [], y: env[last] };
    if (cell >= count) return { ...answer, free: true, clipped: 0 };
    const lower = env.lower || tensors["bounds.lower"], upper = env.upper || tensors["bounds.upper"];
    const clipped = z.filter((v, k) => v !== env.clipped[k]).length / z.length;
    const reach = (output) => {
      const row = cell * m + output;
      let low = b[row];
      if (V) env.x32.forEach((v, k) => { low += V.values[row * env.x32.length + k] * v; });
      let high = low;
      for (let k = 0; k < z.length; k++) {
        const w = W.values[row * z.length + k], top = Math.max(lower[k], upper[k]);
        low += w > 0 ? w * lower[k] : w * top;
        high += w > 0 ? w * top : w * lower[k];
      }
      return [low, high];
    };
    return { ...answer, free: false, clipped, reach };
  };
}

// The rules that are active at a point: those of the regions of the gate that are on, and those of regions without a
// bit in the gate (the whole domain among them) that hold the point.

function activeRules(data, on, x) {
  const rules = new Set();
  on.forEach((bit, region) => { if (bit) data.gated[region].forEach((rule) => rules.add(rule)); });
  for (const region of data.ungated) {
    const inside = region.rows.every((row) => {
      let value = -row.bound;
      for (const [k, v] of row.x) value += v * x[k];
      return row.strict ? value < 0 : value <= 0;
    });
    if (inside) region.rules.forEach((rule) => rules.add(rule));
  }
  return [...rules].sort((p, q) => p - q);
}

// What the active rules say at one point. Rooms are positive where a rule is obeyed.

function literalRoom(literal, x, y) {
  let room = literal.bound;
  for (const [j, g] of literal.y) room -= g * y[j];
  for (const [k, s] of literal.x) room -= s * x[k];
  return room;
}

function ruleRoom(rule, x, y) {
  let room = Infinity;
  for (const clause of rule.clauses) room = Math.min(room, Math.max(...clause.map((l) => literalRoom(l, x, y))));
  for (const [h, k] of rule.exclusions) room = Math.min(room, Math.max(-y[h], -y[k]));
  return room;
}

// Where alternatives of one output leave a gap, such as 12 to 14 for `rate <= 12 or rate >= 14`.

function forbiddenGaps(rules, x, output) {
  const gaps = [];
  for (const rule of rules) {
    for (const clause of rule.clauses) {
      if (clause.length < 2 || !clause.every((literal) => literal.y.length === 1 && literal.y[0][0] === output)) continue;
      const [low, high] = clause.reduce(([a, b], literal) => {
        const g = literal.y[0][1], limit = literal.x.reduce((sum, [k, s]) => sum - s * x[k], literal.bound) / g;
        return g > 0 ? [Math.max(a, limit), b] : [a, Math.min(b, limit)];
      }, [-Infinity, Infinity]);
      if (low < high) gaps.push([low, high]);
    }
  }
  return gaps;
}

function allowedInterval(rules, x, output) {
  let low = -Infinity, high = Infinity;
  for (const rule of rules) {
    for (const clause of rule.clauses) {
      const literal = clause[0];
      if (clause.length !== 1 || literal.y.length !== 1 || literal.y[0][0] !== output) continue;
      const g = literal.y[0][1];
      let limit = literal.bound;
      for (const [k, s] of literal.x) limit -= s * x[k];
      if (g > 0) high = Math.min(high, limit / g);
      else low = Math.max(low, limit / g);
    }
  }
  return [low, high];
}
