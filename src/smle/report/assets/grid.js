"use strict";
// The grid head: whole numbers of steps, checked exactly (section 14 of docs/certificate-format.md). Sums of whole
// numbers below 2^53 are exact here as everywhere; the floors of moving limits are taken of the deployed sums.

const THETA = 0.4871393;

function makeGridHead(head) {
  const { input, gate, check, clauses, blocks } = head;
  const times = (matrix, v) => matrix.map((row) => sumOf(row, v, 0));
  const whole = (v, i) => Math.floor((v * head.denominator[i]) / head.numerator[i] + 0.5);
  const value = (k) => k.map((v, i) => Math.fround((v * head.numerator[i]) / head.denominator[i]) + 0);

  function read(features) {
    return Array.from(features, (v, j) => {
      const x = !(v >= input.lowest[j]) ? input.lowest[j] : v > input.highest[j] ? input.highest[j] : v;
      if (!input.stepped[j]) return Math.abs(x) < 2 ** -100 ? 0 : x;
      const k = Math.floor((x * input.denominator[j]) / input.numerator[j] + 0.5);
      return Math.min(Math.max(k, input.lower[j]), input.upper[j]);
    });
  }

  const bitsOf = (x) => {
    const holds = gate.rows.map((row, i) => sumOf(row, x, 0) <= gate.thresholds[i]);
    return gate.members.map((rows) => rows.every((row) => holds[row]));
  };

  // Products with float32 numbers lose fewer digits.
  const floorOf = (x, i) => {
    const isShort = check.real[0].inputs[i].every(([j]) => Math.fround(x[j]) === x[j]);
    const { inputs, fractions } = check.real[isShort ? 0 : 1];
    return Math.floor(sumOf(inputs[i], x, fractions[i]));
  };
  const rightOf = (x) => check.thresholds.map((h, i) => h - sumOf(check.steps[i], x, 0)
    + (i < check.real[0].fractions.length ? floorOf(x, i) : 0));

  const isOn = (regions, bits) => regions.some((place) => bits[place]);

  // The rules that whole numbers break; `null` stands for the range of an output.
  function broken(k, right, bits) {
    const out = k.some((v, i) => !(v >= head.lower[i] && v <= head.upper[i])) ? [null] : [];
    const sums = times(check.outputs, k), holds = sums.map((sum, i) => sum <= right[i]);
    return [...new Set([...out, ...clauses.filter(([, own, regions]) => isOn(regions, bits) && !own.some((i) => holds[i])).map(([rule]) => rule)])];
  }

  function safe(x, bits) {
    let tree = head.tree, leaf = 0;
    const leaves = (t) => (t === null ? 1 : leaves(t[1]) + leaves(t[2]));
    while (tree !== null) {
      const [question] = tree, inside = typeof question === "object" ? x[question.input] <= question.at : bits[head.place[question]];
      if (!inside) leaf += leaves(tree[1]);
      tree = inside ? tree[1] : tree[2];
    }
    return head.safe[leaf].map(({ slope, offset }) => sumOf(slope, x, 0) + offset);
  }

  // Whole numbers near the targets p, in one problem: for one literal of each clause the nearest real point, rounded so
  // that sums of neighbors keep their limits; then steps one by one as long as that brings them nearer.
  function near(block, p, c, right, bits) {
    const { outputs, places, B, P, R, back, H } = block, own = (v) => outputs.map((i) => v[i]), f = places.length;
    p = own(p);
    c = own(c);
    if (!f) return c;
    const inside = (g) => P.map((_, a) => g.reduce((sum, v, i) => sum + v * B[i][a], 0));
    const made = (g, limit) => {
      const row = inside(g), divisor = row.reduce((a, b) => { a = Math.abs(a); b = Math.abs(b); while (b) [a, b] = [b, a % b]; return a; }, 0) || 1;
      return { a: row.map((v) => v / divisor), b: Math.floor((limit - g.reduce((sum, v, i) => sum + v * c[i], 0)) / divisor) };
    };
    const unit = (i, sign) => outputs.map((_, k) => (k === i ? sign : 0));
    const ends = outputs.flatMap((o, i) => [made(unit(i, 1), head.upper[o]), made(unit(i, -1), -head.lower[o])]);
    const dense = (k) => { const g = outputs.map(() => 0); for (const [i, v] of check.outputs[k]) g[outputs.indexOf(i)] = v; return g; };
    const open = clauses.filter(([, , regions, at]) => at === block.number && isOn(regions, bits)).map(([, list]) => list.map((k) => made(dense(k), right[k])));
    const goal = P.map((row) => row.reduce((sum, v, i) => sum + v * (p[i] - c[i]), 0));
    const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
    const product = (matrix, v) => matrix.map((row) => dot(row, v));
    const cost = (u) => { const gap = u.map((v, i) => v - goal[i]); return dot(gap, product(H, gap)); };
    const sizes = (row) => Math.sqrt(dot(row.a, row.a)) || 1;
    let best = null, least = Infinity;
    for (const chosen of choicesOf(open, (row) => (dot(row.a, goal) - row.b) / sizes(row))) {
      const rows = [...ends, ...chosen].filter((row) => row.a.some((v) => v !== 0));
      // In coordinates R u the metric is that of outputs divided by their scale.
      const turned = rows.map(({ a, b }) => ({ g: back[0].map((_, j) => [j, a.reduce((sum, v, i) => sum + v * back[i][j], 0)]), b }));
      const real = nearestPoint(turned, product(R, goal), () => 1);
      if (!real) continue;
      const z = product(B, product(back, real)).map((v, i) => v + c[i]);
      let sum = 0, last = 0;
      const rounded = block.base.map((i) => { sum += z[i]; const k = Math.floor(sum + THETA) - last; last += k; return k; });
      const start = block.free_of_base.map((place, i) => rounded[place] - c[places[i]]);
      const u = polished(start, rows, cost, dot);
      const far = cost(u) + (rows.every((row) => dot(row.a, u) <= row.b) ? 0 : 1e30);
      if (far < least) [best, least] = [u, far];
    }
    return best && product(B, best).map((v, i) => v + c[i]);
  }

  function polished(start, rows, cost, dot) {
    const f = start.length, moves = [], over = (u) => rows.reduce((sum, row) => sum + Math.max(dot(row.a, u) - row.b, 0), 0);
    for (let i = 0; i < f; i++) for (const side of [1, -1]) {
      moves.push([[i, side]]);
      if (f <= 12) for (let k = 0; k < f; k++) for (const back of [1, -1]) if (k > i) moves.push([[i, side], [k, back]]);
    }
    let u = start, excess = over(u), least = cost(u);
    for (let n = 0; n < 40; n++) {
      let better = null;
      for (const move of moves) {
        const next = [...u];
        for (const [i, side] of move) next[i] += side;
        const more = over(next), found = cost(next);
        if (more < excess || (more === excess && found < least - 1e-9)) [better, excess, least] = [next, more, found];
      }
      if (!better) break;
      u = better;
    }
    return u;
  }

  function serve(features, answer) {
    const x = read(features), bits = bitsOf(x), right = rightOf(x);
    const shown = x.map((v, j) => (input.stepped[j] ? (v * input.numerator[j]) / input.denominator[j] : v));
    const rules = head.where.map((_, rule) => rule).filter((rule) => isOn(head.where[rule], bits));
    const given = answer.map(Math.fround), k = given.map(whole), found = broken(k, right, bits), refused = found.filter((rule) => rule !== null);
    const result = { x: shown, on: bits, cell: bits.map(Number).join(""), rules, own: answer, refused };
    const served = (whole, more) => ({ ...result, y: value(whole), steps: whole, ...more });
    if (!found.length) return served(k, { sure: true, way: given.every((v, i) => v === value(k)[i]) ? "kept" : "rounded" });
    const last = safe(x, bits), usable = given.every((v) => Math.abs(v) <= 2 ** 52);
    const p = given.map((v, i) => (Math.abs(v) <= 2 ** 52 ? (v * head.denominator[i]) / head.numerator[i] : last[i]));
    const c = head.fixed.map(({ slope, offset }) => sumOf(slope, x, 0) + offset), proposed = [...last];
    for (const block of blocks) {
      const part = near(block, p, c, right, bits);
      if (part) block.outputs.forEach((i, n) => { proposed[i] = Math.floor(part[n] + 0.5); });
    }
    const moved = usable ? "moved" : "replaced";
    return broken(proposed, right, bits).length ? served(last, { sure: false, way: "unknown" }) : served(proposed, { sure: false, way: moved });
  }

  return { serve, safe, read, bitsOf };
}
