"use strict";
// The deployed program, step by step as docs/certificate-format.md numbers it, in double arithmetic.

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

function matVec(matrix, x, bias, row = 0, rows = bias.length) {
  const width = x.length, out = new Float64Array(rows);
  for (let i = 0; i < rows; i++) {
    let sum = bias[row + i];
    const start = (row + i) * width;
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

function makeProgram(data, gatedRules) {
  const embed = makeBackbone(data), bounds = { hidden: layersOf(data.bounds.hidden) };
  for (const name of ["lower", "upper", "lower_slope", "upper_slope"]) bounds[name] = unpack(data.bounds[name]);
  const W = unpack(data.heads.weight), b = unpack(data.heads.bias), V = unpack(data.heads.passthrough);
  const free = data.free && { weight: unpack(data.free.weight).values, bias: unpack(data.free.bias).values };
  const count = W.shape[0], gate = data.gate;
  const m = count ? W.shape[1] : free.bias.length;
  const signatures = gate.signatures.map((row) => row.join(""));

  function clamp(x) {
    return Float64Array.from(x, (v, k) => Math.min(Math.max(v, data.domain.low[k]), data.domain.high[k]));
  }

  function activeRegions(x) {
    const on = gatedRules.map(() => 1);
    const switchOff = (member) => member.forEach((uses, region) => { if (uses) on[region] = 0; });
    gate.columns.forEach((column, row) => {
      const signed = gate.negative[row] ? -x[column] : x[column];
      const holds = gate.strict[row] ? signed < gate.constants[row] : signed <= gate.constants[row];
      if (!holds) switchOff(gate.comparison_regions[row]);
    });
    gate.coefficients.forEach((form, row) => {
      let sum = 0;
      for (let k = 0; k < form.length; k++) sum += form[k] * x[k];
      if (sum > gate.thresholds[row]) switchOff(gate.oblique_regions[row]);
    });
    return on;
  }

  function limits(x) {
    if (!bounds.lower_slope) return [bounds.lower.values, bounds.upper.values];
    for (const layer of bounds.hidden) x = matVec(layer.weight, x, layer.bias).map((v) => Math.max(v, 0));
    return [
      matVec(bounds.lower_slope.values, x, bounds.lower.values),
      matVec(bounds.upper_slope.values, x, bounds.upper.values),
    ];
  }

  function passedThrough(x, cell, output) {
    let sum = 0;
    if (V) for (let k = 0; k < x.length; k++) sum += V.values[(cell * m + output) * x.length + k] * x[k];
    return sum;
  }

  return function run(raw) {
    const x = clamp(raw), on = activeRegions(x), z = embed(raw);
    const found = signatures.indexOf(on.join(""));
    const cell = found < 0 ? gate.most_constrained : found;
    const answer = { x, cell, on };
    if (cell >= count) return { ...answer, y: matVec(free.weight, z, free.bias), free: true, clipped: 0 };
    const [lower, upper] = limits(x);
    let clipped = 0;
    const c = Float64Array.from(z, (v, k) => {
      if (v < lower[k] || v > upper[k]) clipped++;
      return Math.min(Math.max(v, lower[k]), upper[k]);
    });
    const y = matVec(W.values, c, b.values, cell * m, m).map((v, i) => v + passedThrough(x, cell, i));
    const reach = (output) => {
      const row = (cell * m + output) * c.length;
      let low = b.values[cell * m + output] + passedThrough(x, cell, output), high = low;
      for (let k = 0; k < c.length; k++) {
        const w = W.values[row + k];
        low += w > 0 ? w * lower[k] : w * upper[k];
        high += w > 0 ? w * upper[k] : w * lower[k];
      }
      return [low, high];
    };
    return { ...answer, y, free: false, clipped: clipped / c.length, reach };
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
