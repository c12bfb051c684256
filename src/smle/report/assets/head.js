"use strict";
// The head of rules: the kernel's list of row operations, then the check and the stored safe answers (sections 12, 13 of
// docs/certificate-format.md). Sums are evaluated as the deployed program for single rows does: same numbers, same bits.

const TINY = 2 ** -126;

// Solve a small system of linear equations.
function eliminated(matrix, right) {
  const rows = matrix.map((row, i) => [...row, right[i]]), n = rows.length;
  for (let k = 0; k < n; k++) {
    const pivot = rows.slice(k).reduce((best, row, i) => (Math.abs(row[k]) > Math.abs(rows[best][k]) ? k + i : best), k);
    [rows[k], rows[pivot]] = [rows[pivot], rows[k]];
    for (let i = k + 1; i < n; i++) {
      const factor = rows[i][k] / rows[k][k];
      for (let j = k; j <= n; j++) rows[i][j] -= factor * rows[k][j];
    }
  }
  const x = Array(n).fill(0);
  for (let k = n - 1; k >= 0; k--) x[k] = (rows[k][n] - rows[k].slice(k + 1, n).reduce((sum, v, i) => sum + v * x[k + 1 + i], 0)) / rows[k][k];
  return x;
}

const normOf = (row, scale) => Math.sqrt(row.g.reduce((sum, [i, v]) => sum + (v * scale(i)) ** 2, 0));

// The nearest point under rows `g.y <= b`, in outputs divided by their scale: one more row at a time, the most violated
// one, and rows whose multiplier would turn negative leave (Goldfarb and Idnani). Null where it seems to be empty; rows
// that contradict others by no more than a rounding are left out.
function nearestPoint(rows, p, scale) {
  const normals = rows.map((row) => {
    const a = p.map(() => 0), size = normOf(row, scale);
    for (const [i, v] of row.g) a[i] = (v * scale(i)) / size;
    return a;
  });
  const bounds = rows.map((row) => row.b / normOf(row, scale));
  const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
  let u = p.map((v, i) => v / scale(i)), held = [], weights = [];
  const left = [];
  for (let step = 0; step < 50 + 10 * rows.length; step++) {
    let worst = -1, most = 1e-15 * (1 + Math.max(...u.map(Math.abs)));
    normals.forEach((a, j) => { const over = dot(a, u) - bounds[j]; if (over > most && !held.includes(j) && !left.includes(j)) { most = over; worst = j; } });
    if (worst < 0) return u.map((v, i) => v * scale(i));
    const a = normals[worst], before = [u, held, weights];
    for (let weight = 0; ; ) {
      const r = eliminated(held.map((h) => held.map((k) => dot(normals[h], normals[k]))), held.map((h) => dot(normals[h], a)));
      const z = a.map((v, i) => v - held.reduce((sum, h, n) => sum + r[n] * normals[h][i], 0)), size = dot(z, z);
      const full = size > 1e-20 ? (dot(a, u) - bounds[worst]) / size : Infinity;
      let leaving = -1, part = Infinity;
      r.forEach((v, n) => { if (v > 1e-14 && weights[n] / v < part) { part = weights[n] / v; leaving = n; } });
      const t = Math.min(full, part);
      if (!Number.isFinite(t)) {
        if (most > 1e-8 * (1 + Math.max(...u.map(Math.abs)))) return null;
        [u, held, weights] = before;
        left.push(worst);
        break;
      }
      if (full < Infinity) u = u.map((v, i) => v - t * z[i]);
      weights = weights.map((w, n) => w - t * r[n]);
      weight += t;
      if (full <= part) { held.push(worst); weights.push(weight); break; }
      held = held.filter((_, n) => n !== leaving);
      weights = weights.filter((_, n) => n !== leaving);
    }
  }
  return null;
}

// One literal of each clause, all ways; where these are too many, of a clause the literal that `over` likes best.
function choicesOf(clauses, over) {
  let choices = [[]];
  for (const clause of clauses) {
    const many = choices.length * clause.length > 64;
    const taken = many ? [clause.reduce((a, b) => (over(a) <= over(b) ? a : b))] : clause;
    choices = choices.flatMap((rows) => taken.map((row) => [...rows, row]));
  }
  return choices;
}

function makeHead(head) {
  const { ops, tensors, check, where } = head;
  const stages = ops.filter((op) => op.kind === "raise_to" || op.kind === "lower_to");
  const settle = (y) => (check ? y.map((v) => (Math.abs(v) < TINY ? 0 : v)) : y);
  const run = (list, env) => runOperations(list, tensors, env);

  // What the clips make of an answer, and whether that passes the check.
  function clipped(features, answer) {
    const env = run(ops, { features: [...features], answer: answer.map(Math.fround) });
    const bits = env.bits || [], y = settle(env.y);
    return { x: env.x, bits, y, ok: passes(env.x, bits, y) };
  }

  const isOn = (rule, bits) => where[rule].some((place) => bits[place]);

  function holds({ y: outputs, sizes, x: inputs, threshold }, x, y) {
    const m = y.length, form = [...outputs, ...sizes.map(([i, v]) => [m + i, v]), ...inputs.map(([k, v]) => [2 * m + k, v])];
    return sumOf(form, [...y, ...y.map(Math.abs), ...x]) <= threshold;
  }

  // The clauses and excluded pairs that an answer breaks.
  function misses(x, bits, y) {
    if (!check) return [];
    const found = check.clauses.filter(([rule, own]) => isOn(rule, bits) && !own.some((k) => holds(check.literals[k], x, y)))
      .map(([rule, own]) => ({ rule, outputs: own.flatMap((k) => check.literals[k].y.map(([i]) => i)) }));
    const pairs = check.excluded.flatMap(([rule, list]) => (isOn(rule, bits) ? list.filter(([h, k]) => y[h] >= 0 && y[k] >= 0).map((outputs) => ({ rule, outputs })) : []));
    return [...found, ...pairs];
  }

  const broken = (x, bits, y) => [...new Set(misses(x, bits, y).map(({ rule }) => rule))];
  const passes = (x, bits, y) => broken(x, bits, y).length === 0;

  // The stored answer of the leaf that the bits choose, behind the clips of these bits.
  function safe(x, bits) {
    let tree = head.tree, leaf = 0;
    const leaves = (t) => (t === null ? 1 : leaves(t[1]) + leaves(t[2]));
    while (tree !== null) {
      const inside = bits[head.place[tree[0]]];
      if (!inside) leaf += leaves(tree[1]);
      tree = inside ? tree[1] : tree[2];
    }
    const first = tensors["safe.offset"][leaf].map((offset, i) => Math.fround(sumOf(sparse(tensors["safe.slope"][leaf][i]), x, offset)));
    const env = run(stages, { x, X: x, bits, q: first });
    return settle((stages.length ? env[stages[stages.length - 1].out] : first).map(Math.fround));
  }

  // What is served, bit by bit, where clips and check settle it (`sure`). Where the check refuses, an allowed answer is
  // looked for here, among the rows and clauses that the deployed program searches. It obeys, but the program searches
  // more widely: it may serve a nearer one, also where nothing is found here ("unknown"; `y` is then the stored safe
  // answer, its last resort).
  function serve(features, answer) {
    const found = clipped(features, answer), { x, bits, y } = found;
    const rules = where.map((_, rule) => rule).filter((rule) => isOn(rule, bits));
    const result = { x, on: bits, cell: bits.map(Number).join(""), rules, own: answer, refused: broken(x, bits, y) };
    const usable = answer.every((v) => v >= -WIDE && v <= WIDE);
    if (found.ok) {
      const kept = usable && y.every((v, i) => v === Math.fround(answer[i]));
      return { ...result, y, sure: true, way: kept ? "kept" : usable ? "moved" : "replaced" };
    }
    const last = safe(x, bits);
    const given = answer.map((v, i) => (v >= -WIDE && v <= WIDE ? Math.fround(v) : tensors["clips.default"][i]));
    const tried = clipped(features, proposal(features, x, bits, given, last));
    if (tried.ok) return { ...result, y: tried.y, sure: false, way: usable ? "moved" : "replaced" };
    return { ...result, y: last, sure: false, way: "unknown" };
  }

  // Of labels that exclude each other the one with the larger score stays on.
  function separated(bits, answer) {
    const y = [...answer], others = y.map(() => []);
    for (const [rule, pairs] of check.excluded) {
      if (isOn(rule, bits)) for (const [h, k] of pairs) { others[h].push(k); others[k].push(h); }
    }
    const order = y.map((_, i) => i).filter((i) => y[i] >= 0 && others[i].length).sort((a, b) => answer[b] - answer[a]);
    for (const i of order) if (y[i] >= 0) for (const k of others[i]) if (y[k] >= 0) y[k] = -TINY;
    return y;
  }

  // Answers near p in the outputs of a block: its rows and clauses are those that the deployed program searches. Rows of
  // labels that were turned off keep them off.
  function nearestOf({ rows, clauses }, x, bits, p, off, safeAnswer) {
    const bounded = rows.map(({ y, x: inputs, bound }) => ({ g: y, b: bound - sumOf(inputs, x, 0), fixed: y.length === 1 && !inputs.length }));
    const open = clauses.filter(([rule]) => isOn(rule, bits)).map(([, own]) => own.map((k) => bounded[k]));
    const choices = choicesOf(open, (row) => (sumOf(row.g, p) - row.b) / norm(row));
    const found = choices.map((chosen) => nearest([...off, ...chosen], p)).filter(Boolean);
    found.sort((a, b) => distance(a.y, p) - distance(b.y, p));
    const toward = (y, steps) => steps.map((step) => y.map((v, i) => v + step * (safeAnswer[i] - v)));
    const near = found.flatMap(({ y, inner }) => [y, inner || y, ...toward(y, [2 ** -18, 2 ** -12, 2 ** -7])]);
    return [...near, ...found.flatMap(({ y }) => toward(y, [1 / 16, 1 / 4, 1 / 2]))];
  }

  // Block by block, the first answer that passes there.
  function proposal(features, x, bits, answer, safeAnswer) {
    const p = separated(bits, answer), turned = p.flatMap((v, i) => (v === answer[i] ? [] : [{ g: [[i, 1]], b: -TINY, fixed: true }]));
    return head.blocks.reduce((before, block) => {
      const inside = (i) => block.outputs.includes(i);
      const fits = (y) => { const tried = clipped(features, y); return !misses(tried.x, tried.bits, tried.y).some(({ outputs }) => outputs.some(inside)); };
      if (fits(before)) return before;
      const near = nearestOf(block, x, bits, p, turned.length <= 8 ? turned : [], safeAnswer);
      return near.map((own) => before.map((v, i) => (inside(i) ? own[i] : v))).find(fits) || before;
    }, p);
  }

  const scale = (i) => (check ? check.scale[i] : 1);
  const norm = (row) => normOf(row, scale);
  const distance = (a, b) => a.reduce((sum, v, i) => sum + ((v - b[i]) / scale(i)) ** 2, 0);

  // The nearest point, and one that leaves room for the rounding of sums.
  function nearest(rows, p) {
    const y = nearestPoint(rows, p, scale);
    if (!y || !y.every(Number.isFinite)) return null;
    const room = (row) => (row.fixed ? 0 : row.g.reduce((sum, [i, v]) => sum + Math.abs(v * y[i]), 0) * 2 ** -23);
    return { y, inner: nearestPoint(rows.map((row) => ({ ...row, b: row.b - room(row) })), p, scale) };
  }

  return { clipped, safe, serve };
}
