"use strict";
// The slice explorer: one input gives a line, two give a map; all other inputs have sliders.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "rect", "text", "circle", "g"].includes(name);
  const made = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function digits(value) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const rounded = Number(value.toPrecision(4)), grouped = size >= 1e4 && size < 1e9;
  const text = grouped ? Math.round(value).toLocaleString("en-US") : size >= 1e9 || size < 1e-4 ? value.toExponential(2) : String(rounded);
  return text.replace("-", "−");
}

// A value of an output; in steps it has all of its decimals.
function answerText(output, value) {
  if (!output.step || !Number.isFinite(value)) return digits(value);
  const places = (String(output.step).split(".")[1] || "").length;
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−");
}

// A value of an input; dates are days from 1970-01-01.
function valueText(input, value) {
  if (input.sets) return value === 1 ? "missing" : value === 0 ? "known" : "";
  return input.dates ? new Date(Math.round(value) * 86400000).toISOString().slice(0, 10) : digits(value);
}

function roundTicks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

const FOUND_HERE = "an allowed answer that this page finds. The model searches more widely, and may serve one that is nearer.";

class Explorer {
  constructor(data) {
    this.data = data;
    this.answers = [...(data.answers || [])];
    this.head = data.steps ? makeGridHead(data.steps) : data.head ? makeHead(data.head) : null;
    const network = data.network ? makeBackbone(data.network) : null;
    this.run = data.box ? makeBox(data.box, network)
      : this.head ? (x) => this.head.serve(x, network ? [...network(x)] : this.answers)
      : (x) => ({ x, y: network(x), cell: 0, rules: [], free: true, clipped: 0 });
    this.values = data.inputs.map((input) => input.start);
    this.first = 0;
    this.second = -1;
    this.output = 0;
    this.pending = false;
    this.buildControls();
    this.draw();
    document.addEventListener("theme", () => this.draw());
    new ResizeObserver(() => this.schedule()).observe(document.getElementById("chart"));
  }

  // --- controls

  buildControls() {
    const { inputs, outputs } = this.data;
    const names = inputs.map((input, i) => [i, input.name]);
    this.firstField = this.select("across", names, this.first, (v) => {
      this.first = v;
      if (this.second === v) this.second = -1;
      this.fillSecond();
    });
    this.secondField = this.select("up", [], this.second, (v) => { this.second = v; });
    this.fillSecond();
    const shown = outputs.map((o, i) => [i, this.title(o)]);
    const decisions = this.data.choices.map((choice, i) => [-1 - i, `${choice.name} (the choice)`]);
    if (decisions.length) this.output = -1;
    this.select("output", [...decisions, ...shown], this.output, (v) => { this.output = v; });
    const place = document.getElementById("sliders");
    this.sliders = inputs.map((input, i) => this.slider(input, i, place));
    const entries = document.getElementById("answers");
    if (entries) this.fields = outputs.slice(0, 24).map((output, i) => this.entry(output, i, entries));
    const chart = document.getElementById("chart");
    chart.addEventListener("pointerdown", (event) => this.pointed(event));
    chart.addEventListener("pointermove", (event) => { if (event.buttons) this.pointed(event); });
  }

  title(output) {
    return output.kind === "label" ? `logit of ${output.name}` : output.kind === "score" ? `score ${output.name}` : output.name;
  }

  select(id, options, value, act) {
    const field = document.getElementById(id);
    field.replaceChildren(...options.map(([v, name]) => element("option", { value: v }, name)));
    field.value = String(value);
    field.addEventListener("change", () => { act(Number(field.value)); this.draw(); });
    return field;
  }

  fillSecond() {
    const options = this.data.inputs.map((input, i) => [i, input.name]).filter(([i]) => i !== this.first);
    this.secondField.replaceChildren(...[[-1, "none (draw a line)"], ...options].map(([v, n]) => element("option", { value: v }, n)));
    this.secondField.value = String(this.second);
  }

  stepOf(input) {
    return input.integer ? 1 : input.step || 0;
  }

  // The nearest value that an input can have.
  settled(input, value) {
    const step = this.stepOf(input);
    return Math.min(Math.max(step ? Number((Math.round(value / step) * step).toPrecision(12)) : value, input.low), input.high);
  }

  slider(input, i, place) {
    const id = `input-${i}`, readout = element("output", { for: id });
    let field;
    if (input.kind === "category") {
      field = element("select", { id }, ...input.categories.map((c, k) => element("option", { value: k }, c)));
    } else {
      field = element("input", { id, type: "range", min: input.low, max: input.high, step: this.stepOf(input) || "any" });
    }
    field.value = String(this.values[i]);
    field.addEventListener("input", () => { this.values[i] = Number(field.value); this.schedule(); });
    const row = element("div", { class: "slider", "data-row": "" }, element("label", { for: id }, input.name), field, readout);
    place.append(row);
    return { field, readout, row };
  }

  entry(output, i, place) {
    const id = `answer-${i}`, field = element("input", { id, type: "number", step: output.step || "any", value: this.answers[i] });
    field.addEventListener("input", () => {
      this.answers[i] = field.value === "" ? NaN : Number(field.value);
      this.schedule();
    });
    place.append(element("div", { class: "entry" }, element("label", { for: id }, this.title(output)), field));
    return field;
  }

  setInput(i, value) {
    const input = this.data.inputs[i];
    if (!input) return;
    if (input.kind === "category") value = Math.min(Math.max(Math.round(value), 0), input.categories.length - 1);
    else value = this.settled(input, value);
    this.values[i] = value;
    this.sliders[i].field.value = String(value);
    this.schedule();
  }

  pointed(event) {
    if (!this.area) return;
    const box = document.getElementById("chart").getBoundingClientRect(), { left, top, width, height, x, y } = this.area;
    const share = (v, start, size) => Math.min(Math.max((v - start) / size, 0), 1);
    this.setInput(this.first, x[0] + share(event.clientX - box.left, left, width) * (x[1] - x[0]));
    if (this.second >= 0) this.setInput(this.second, y[1] - share(event.clientY - box.top, top, height) * (y[1] - y[0]));
  }

  // --- evaluation

  columns(values) {
    const x = new Float64Array(this.data.inputs.reduce((n, input) => n + input.columns.length, 0));
    this.data.inputs.forEach((input, i) => {
      if (input.kind === "category") x[input.columns[values[i]]] = 1;
      else x[input.columns[0]] = this.stepOf(input) ? this.settled(input, values[i]) : values[i];
    });
    for (const input of this.data.inputs) {
      if (input.sets && x[input.columns[0]] === 1) for (const [column, value] of input.sets) x[column] = value;
    }
    return x;
  }

  at(values) {
    const answer = this.run(this.columns(values));
    return answer.rules ? answer : { ...answer, rules: activeRules(this.data, answer.on, answer.x) };
  }

  samples(axis, count) {
    const input = this.data.inputs[axis];
    if (input.kind === "category") return input.categories.map((_, k) => k);
    const [low, high] = this.extent(axis), size = high - low;
    if (input.integer && this.second < 0) {
      const total = Math.min(count, size);
      return [...new Set(Array.from({ length: total + 1 }, (_, k) => Math.round(low + (k / total) * size)))];
    }
    // The ends of a line, but the middles of the tiles of a map.
    const middle = this.second < 0 ? 0 : 0.5, total = this.second < 0 ? count : count + 1;
    return Array.from({ length: count + 1 }, (_, k) => low + ((k + middle) / total) * size);
  }

  // Where data lie, with some room, and where the slider is; the whole range if nothing is known of data.
  extent(axis) {
    const input = this.data.inputs[axis];
    if (input.kind === "category") return [-0.5, input.categories.length - 0.5];
    if (!input.seen) return [input.low, input.high];
    const room = 0.1 * (input.seen[1] - input.seen[0]) || 0.05 * (input.high - input.low), value = this.values[axis];
    const ends = [Math.min(input.seen[0] - room, value), Math.max(input.seen[1] + room, value)];
    const [low, high] = input.integer ? [Math.floor(ends[0]), Math.ceil(ends[1])] : ends;
    return [Math.max(low, input.low), Math.min(high, input.high)];
  }

  // Between two values of an axis with different cells: the last of the first cell, the first of another one.
  border(axis, values, a, b, cell) {
    const integer = this.data.inputs[axis].integer && this.second < 0;
    for (let n = 0; n < 22 && (!integer || b - a > 1); n++) {
      const middle = integer ? Math.floor((a + b) / 2) : (a + b) / 2;
      const found = this.at(values.map((old, i) => (i === axis ? middle : old))).cell;
      if (found === cell) a = middle;
      else b = middle;
    }
    return [a, b];
  }

  // The samples of a line, with two more at every border between cells, so that it is drawn where it is.
  refined(axis, xs) {
    if (this.data.inputs[axis].kind === "category") return xs;
    const cellAt = (v) => this.at(this.values.map((old, i) => (i === axis ? v : old))).cell;
    const found = [xs[0]];
    let last = cellAt(xs[0]);
    for (let k = 1; k < xs.length; k++) {
      const cell = cellAt(xs[k]);
      if (cell !== last) found.push(...this.border(axis, this.values, xs[k - 1], xs[k], last));
      found.push(xs[k]);
      last = cell;
    }
    return [...new Set(found)].sort((a, b) => a - b);
  }

  chosen(answer, choice) {
    const sign = choice.pick === "max" ? 1 : -1;
    let best = 0;
    choice.columns.forEach((column, k) => { if (sign * answer.y[column] > sign * answer.y[choice.columns[best]]) best = k; });
    return best;
  }

  shownValue(answer) {
    return this.output < 0 ? this.chosen(answer, this.data.choices[-1 - this.output]) : answer.y[this.output];
  }

  // --- drawing

  schedule() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  draw() {
    const chart = document.getElementById("chart");
    const width = Math.max(chart.clientWidth, 260);
    this.sliders.forEach(({ field, readout, row }, i) => {
      const input = this.data.inputs[i];
      readout.textContent = input.kind === "category" ? "" : valueText(input, this.values[i]);
      row.classList.toggle("axis-input", i === this.first || i === this.second);
    });
    chart.replaceChildren();
    if (this.second < 0) this.drawLine(chart, width);
    else this.drawMap(chart, width);
    this.describe();
  }

  frame(width, height, x, y, labels) {
    const left = 58, top = 12, right = 14, bottom = this.second < 0 ? 60 : 44;
    this.area = { left, top, width: width - left - right, height: height - top - bottom, x, y };
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "plot" });
    const { area } = this;
    this.px = (v) => area.left + ((v - x[0]) / (x[1] - x[0])) * area.width;
    this.py = (v) => area.top + (1 - (v - y[0]) / (y[1] - y[0])) * area.height;
    const base = top + area.height;
    for (const [v, name] of this.ticksOf(this.first, x, Math.max(3, Math.floor(area.width / 90)))) {
      svg.append(element("text", { x: this.px(v), y: base + (this.second < 0 ? 30 : 16), class: "tick middle" }, name));
    }
    const vertical = this.second < 0 ? (this.output < 0 ? this.optionTicks() : roundTicks(...y, 5).map((v) => [v, digits(v)])) : this.ticksOf(this.second, y, 5);
    for (const [v, name] of vertical) {
      if (this.second < 0) svg.append(element("line", { x1: left, x2: left + area.width, y1: this.py(v), y2: this.py(v), class: "grid" }));
      svg.append(element("text", { x: left - 7, y: this.py(v) + 4, class: "tick end" }, name.length > 9 ? name.slice(0, 8) + "…" : name));
    }
    svg.append(element("text", { x: left + area.width / 2, y: height - 6, class: "axis middle" }, labels[0]));
    const middle = top + area.height / 2;
    svg.append(element("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, class: "axis middle" }, labels[1]));
    return svg;
  }

  ticksOf(axis, ends, wanted) {
    const input = this.data.inputs[axis];
    if (input.kind !== "category") return roundTicks(...ends, wanted).map((v) => [v, valueText(input, v)]);
    const step = Math.ceil(input.categories.length / Math.max(wanted, 1));
    return input.categories.map((name, k) => [k, name]).filter(([k]) => k % step === 0);
  }

  optionTicks() {
    return this.data.choices[-1 - this.output].options.map((name, k) => [k, name]);
  }

  drawLine(chart, width) {
    const axis = this.first, height = 340, xs = this.refined(axis, this.samples(axis, this.head ? 120 : 240));
    const answers = xs.map((v) => this.at(this.values.map((old, i) => (i === axis ? v : old))));
    const points = xs.map((v, k) => {
      const answer = answers[k], rules = answer.rules.map((r) => this.data.rules[r]);
      const limits = this.output < 0 ? [-Infinity, Infinity] : allowedInterval(rules, answer.x, this.output);
      const reach = this.output >= 0 && answer.reach ? answer.reach(this.output) : null;
      const gaps = this.output < 0 ? [] : forbiddenGaps(rules, answer.x, this.output);
      const own = answer.own && this.output >= 0 ? answer.own[this.output] : null;
      return { v, value: this.shownValue(answer), limits, gaps, own, reach, cell: answer.cell, sure: answer.sure };
    });
    const name = this.output < 0 ? this.data.choices[-1 - this.output].name : this.title(this.data.outputs[this.output]);
    const svg = this.frame(width, height, this.extent(axis), this.valueScale(points), [this.data.inputs[axis].name, name]);
    const category = this.data.inputs[axis].kind === "category";
    const edges = xs.map((v, k) => category ? [v - 0.45, v + 0.45]
      : [k ? (xs[k - 1] + v) / 2 : v, k < xs.length - 1 ? (v + xs[k + 1]) / 2 : v]);
    const [low, high] = this.area.y;
    // Runs of neighbors in one cell, in which limits are lines: from the edge of the first to that of the last.
    const runs = [];
    points.forEach((point, k) => {
      if (!category && k && points[k - 1].cell === point.cell) runs[runs.length - 1].push(k);
      else runs.push([k]);
    });
    const traced = (run, value) => [[edges[run[0]][0], run[0]], ...run.map((k) => [points[k].v, k]), [edges[run[run.length - 1]][1], run[run.length - 1]]]
      .map(([v, k]) => `${this.px(v).toFixed(1)},${this.py(Math.min(Math.max(value(points[k]), low), high)).toFixed(1)}`);
    const parts = (there) => runs.flatMap((run) => {
      const found = [];
      run.forEach((k, n) => {
        if (!there(points[k])) return;
        if (n && there(points[run[n - 1]])) found[found.length - 1].push(k);
        else found.push([k]);
      });
      return found;
    });
    const band = (kind, ends) => {
      let path = "";
      for (const run of parts((p) => { const pair = ends(p); return pair && pair[1] > pair[0]; })) {
        path += `M${traced(run, (p) => ends(p)[1]).join("L")}L${traced(run, (p) => ends(p)[0]).reverse().join("L")}Z`;
      }
      if (path) svg.append(element("path", { d: path, class: kind }));
    };
    band("reach", (p) => p.reach);
    band("forbidden", (p) => (p.limits[1] < Infinity ? [p.limits[1], high] : null));
    band("forbidden", (p) => (p.limits[0] > -Infinity ? [low, p.limits[0]] : null));
    const most = Math.max(...points.map((p) => p.gaps.length));
    for (let n = 0; n < most; n++) band("forbidden", (p) => p.gaps[n] || null);
    if (this.output >= 0 && this.data.outputs[this.output].kind === "label") {
      svg.append(element("line", { x1: this.px(this.area.x[0]), x2: this.px(this.area.x[1]), y1: this.py(0), y2: this.py(0), class: "marker" }));
    }
    for (const side of [0, 1]) {
      const path = parts((p) => Number.isFinite(p.limits[side])).map((run) => `M${traced(run, (p) => p.limits[side]).join("L")}`).join("");
      if (path) svg.append(element("path", { d: path, class: "limit" }));
    }
    this.cellStrip(svg, points, edges);
    let path = "";
    points.forEach((point, k) => {
      const joined = !category && this.output >= 0 && k && points[k - 1].cell === point.cell;
      if (category || this.output < 0) path += `M${this.px(edges[k][0]).toFixed(1)},${this.py(point.value).toFixed(1)}H${this.px(edges[k][1]).toFixed(1)}`;
      else if (joined && this.data.outputs[this.output].step) path += `H${this.px(edges[k][0]).toFixed(1)}V${this.py(point.value).toFixed(1)}H${this.px(point.v).toFixed(1)}`;
      else path += `${joined ? "L" : "M"}${this.px(point.v).toFixed(1)},${this.py(point.value).toFixed(1)}`;
    });
    let own = "";
    points.forEach((point, k) => {
      if (Number.isFinite(point.own) && point.own !== null) own += `${category || !k || !own ? "M" : "L"}${this.px(point.v).toFixed(1)},${this.py(point.own).toFixed(1)}`;
    });
    if (own) svg.append(element("path", { d: own, class: "own" }));
    svg.append(element("path", { d: path, class: "line" }));
    const here = this.shownValue(this.at(this.values)), x = this.px(this.values[axis]);
    svg.append(element("line", { x1: x, x2: x, y1: this.area.top, y2: this.area.top + this.area.height, class: "marker" }));
    svg.append(element("circle", { cx: x, cy: this.py(Math.min(Math.max(here, low), high)), r: 5, class: "cursor" }));
    const reach = points.some((p) => p.reach) ? " Blue band: what the head can reach." : "";
    const limited = points.some((p) => p.limits.some(Number.isFinite) || p.gaps.length) ? " Red: forbidden." : "";
    const guessed = points.some((p) => p.sure === false) ? ` Where the check refuses an answer: ${FOUND_HERE}` : "";
    const lines = this.head ? `Line: what is served.${guessed}${own ? " Dashed: what the model answers." : ""}` : "Line: prediction.";
    chart.append(svg, element("p", { class: "legend" }, `${lines}${reach}${limited} The strip below marks regions. Drag in the drawing, or use the sliders.`));
  }

  valueScale(points) {
    if (this.output < 0) return [-0.5, this.data.choices[-1 - this.output].options.length - 0.5];
    const all = points.flatMap((p) => [p.value, ...p.limits, ...p.gaps.flat(), ...(p.reach || []), ...(p.own === null ? [] : [p.own])]).filter(Number.isFinite);
    if (this.head && this.data.outputs[this.output].kind === "label") all.push(0);
    let low = Infinity, high = -Infinity;
    for (const v of all) { low = Math.min(low, v); high = Math.max(high, v); }
    const room = Math.max((high - low) * 0.08, Math.abs(high) * (this.head && high === low ? 0.2 : 1e-6), 1e-9);
    return [low - room, high + room];
  }

  cellStrip(svg, points, edges) {
    const y = this.area.top + this.area.height + 6;
    let start = 0, parity = 0;
    points.forEach((point, k) => {
      if (k < points.length - 1 && points[k + 1].cell === point.cell) return;
      const a = this.px(edges[start][0]), b = this.px(edges[k][1]);
      svg.append(element("rect", { x: a, y, width: Math.max(b - a - 1, 1), height: 7, rx: 2, class: parity ? "cell odd" : "cell" }));
      if (k < points.length - 1) {
        svg.append(element("line", { x1: b, x2: b, y1: this.area.top, y2: y + 7, class: "border" }));
      }
      start = k + 1;
      parity = 1 - parity;
    });
  }

  drawMap(chart, width) {
    const { layers } = this.data.network || { layers: [] };
    const side = this.head ? 36 : layers.reduce((n, l) => n + l.weight.shape[0] * l.weight.shape[1], 0) > 40000 ? 36 : 56;
    const height = Math.min(Math.max(width * 0.66, 280), 460);
    const xs = this.samples(this.first, side), ys = this.samples(this.second, side);
    const name = this.output < 0 ? this.data.choices[-1 - this.output].name : this.title(this.data.outputs[this.output]);
    const svg = this.frame(width, height, this.extent(this.first), this.extent(this.second), [this.data.inputs[this.first].name, this.data.inputs[this.second].name]);
    const rows = ys.map((y) => xs.map((x) => {
      const answer = this.at(this.values.map((old, i) => (i === this.first ? x : i === this.second ? y : old)));
      return { value: this.shownValue(answer), cell: answer.cell };
    }));
    let low = Infinity, high = -Infinity;
    for (const row of rows) for (const p of row) { low = Math.min(low, p.value); high = Math.max(high, p.value); }
    if (this.output < 0) [low, high] = [0, this.data.choices[-1 - this.output].options.length - 1];
    const canvas = this.raster(rows, low, high), { left, top, width: w, height: h } = this.area;
    Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${w}px`, height: `${h}px` });
    this.cellBorders(svg, rows, xs, ys);
    svg.append(element("circle", { cx: this.px(this.values[this.first]), cy: this.py(this.values[this.second]), r: 6, class: "cursor" }));
    chart.append(canvas, svg, this.legend(name, low, high));
  }

  colors() {
    const style = getComputedStyle(document.documentElement);
    const rgb = (variable) => style.getPropertyValue(variable).trim().match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
    const from = rgb("--map-low"), to = rgb("--map-high");
    return (share) => from.map((v, c) => Math.round(v + share * (to[c] - v)));
  }

  raster(rows, low, high) {
    const canvas = element("canvas", { width: rows[0].length, height: rows.length, "aria-hidden": "true" });
    const color = this.colors();
    const context = canvas.getContext("2d"), image = context.createImageData(rows[0].length, rows.length);
    rows.forEach((row, j) => row.forEach((point, i) => {
      const share = high > low ? (point.value - low) / (high - low) : 0.5, at = 4 * ((rows.length - 1 - j) * row.length + i);
      image.data.set([...color(share), 255], at);
    }));
    context.putImageData(image, 0, 0);
    return canvas;
  }

  // Borders between cells where they are, row by row and column by column; those of one pair of cells are joined.
  cellBorders(svg, rows, xs, ys) {
    const { left, top, width, height } = this.area, nx = xs.length, ny = ys.length;
    const numeric = (axis) => this.data.inputs[axis].kind !== "category";
    const crossing = (axis, other, fixed, a, b, cell, edge) => {
      if (!numeric(axis)) return edge;
      const values = this.values.map((old, i) => (i === other ? fixed : old));
      const [low, high] = this.border(axis, values, a, b, cell);
      return axis === this.first ? this.px((low + high) / 2) : this.py((low + high) / 2);
    };
    const upright = rows.map((row, j) => row.slice(1).map((point, i) => (point.cell === row[i].cell ? null
      : { at: crossing(this.first, this.second, ys[j], xs[i], xs[i + 1], row[i].cell, left + ((i + 1) / nx) * width), pair: `${row[i].cell}|${point.cell}` })).filter(Boolean));
    const level = xs.map((x, i) => rows.slice(1).map((row, j) => (row[i].cell === rows[j][i].cell ? null
      : { at: crossing(this.second, this.first, x, ys[j], ys[j + 1], rows[j][i].cell, top + ((ny - 1 - j) / ny) * height), pair: `${rows[j][i].cell}|${row[i].cell}` })).filter(Boolean));
    const yAt = (j) => (numeric(this.second) ? this.py(ys[j]) : top + ((ny - 0.5 - j) / ny) * height);
    const xAt = (i) => (numeric(this.first) ? this.px(xs[i]) : left + ((i + 0.5) / nx) * width);
    let path = "";
    const joined = (lines, step, reach, place) => lines.forEach((line, k) => line.forEach(({ at, pair }) => {
      const next = (lines[k + 1] || []).filter((other) => other.pair === pair && Math.abs(other.at - at) < reach)
        .sort((a, b) => Math.abs(a.at - at) - Math.abs(b.at - at))[0];
      const before = k && lines[k - 1].some((other) => other.pair === pair && Math.abs(other.at - at) < reach);
      if (!before) path += `M${place(at, step(k, -0.5))}L${place(at, step(k, 0))}`;
      path += `M${place(at, step(k, 0))}L${next ? place(next.at, step(k + 1, 0)) : place(at, step(k, 0.5))}`;
    }));
    const inside = (v, start, size) => Math.min(Math.max(v, start), start + size).toFixed(1);
    const pair = (x, y) => `${inside(x, left, width)},${inside(y, top, height)}`;
    joined(upright, (j, half) => yAt(j) - (half * height) / ny, (3 * width) / nx, (x, y) => pair(x, y));
    joined(level, (i, half) => xAt(i) + (half * width) / nx, (3 * height) / ny, (y, x) => pair(x, y));
    if (path) svg.append(element("path", { d: path, class: "halo" }), element("path", { d: path, class: "border strong" }));
  }

  legend(name, low, high) {
    const color = this.colors(), options = this.output < 0 ? this.data.choices[-1 - this.output].options : null;
    const swatch = (share, width) => element("svg", { viewBox: `0 0 ${width} 12`, width, height: 12, "aria-hidden": "true", class: "swatch" },
      element("rect", { width, height: 12, fill: `rgb(${color(share).join(",")})` }));
    const line = element("p", { class: "legend" }, `${name}: `);
    if (options) {
      options.slice(0, 12).forEach((option, k) => line.append(swatch(options.length > 1 ? k / (options.length - 1) : 0.5, 14), ` ${option} `));
      if (options.length > 12) line.append("… ");
    } else {
      line.append(`${digits(low)} `, ...Array.from({ length: 12 }, (_, k) => swatch(k / 11, 8)), ` ${digits(high)}`);
    }
    line.append(element("br"), "Lines separate regions. Drag in the drawing, or use the sliders.");
    return line;
  }

  // --- words

  describe() {
    const answer = this.at(this.values), place = document.getElementById("readout");
    const rows = [];
    const say = (term, ...text) => rows.push(element("dt", {}, term), element("dd", {}, ...text));
    const term = answer.way === "unknown" ? "safe" : answer.sure === false ? "found" : "served";
    for (const choice of this.data.choices) {
      const served = choice.options[this.chosen(answer, choice)];
      if (answer.own) say(`model: ${choice.name}`, choice.options[this.chosen({ y: answer.own }, choice)]);
      say(answer.own ? `${term}: ${choice.name}` : choice.name, served);
    }
    if (this.output >= 0) {
      const output = this.data.outputs[this.output], value = answer.y[this.output];
      const verdict = output.kind === "label" ? (value >= 0 ? " (predicted)" : " (not predicted)") : "";
      if (answer.own) say(`model: ${this.title(output)}`, Number.isNaN(answer.own[this.output]) ? "NaN" : digits(answer.own[this.output]));
      say(answer.own ? `${term}: ${this.title(output)}` : this.title(output), answerText(output, value) + verdict);
      if (answer.steps && output.step && output.step !== 1) say("in steps", `${answer.steps[this.output].toLocaleString("en-US")} of ${output.step}`);
      const [low, high] = allowedInterval(answer.rules.map((r) => this.data.rules[r]), answer.x, this.output);
      if (low > -Infinity || high < Infinity) {
        say("allowed here", low > -Infinity && high < Infinity ? `${digits(low)} to ${digits(high)}`
          : low > -Infinity ? `at least ${digits(low)}` : `at most ${digits(high)}`);
      }
      const gaps = forbiddenGaps(answer.rules.map((r) => this.data.rules[r]), answer.x, this.output);
      for (const gap of gaps) say("forbidden here", `between ${gap.map(digits).join(" and ")}`);
      if (answer.reach) say("certified reach", answer.reach(this.output).map(digits).join(" to "));
    }
    if (answer.way) {
      const names = answer.refused.map((r) => this.data.rules[r].name).join(", ");
      say("all outputs", { kept: "kept: the rules allow the answer", rounded: "rounded to whole steps, which the rules allow", replaced: "replaced: NaN or infinity is no answer",
        moved: names ? `moved: the check refuses it (${names})` : "moved onto limits",
        unknown: `the check refuses it (${names}), and this page finds no allowed answer near it. The model searches further; if it finds none either, it serves the stored safe answer` }[answer.way]);
      if (answer.sure === false && answer.way !== "unknown") say("found", FOUND_HERE);
    }
    const list = answer.rules.slice(0, 12).map((r) => {
      const rule = this.data.rules[r];
      const room = rule.complete ? ruleRoom(rule, answer.x, answer.y) : null;
      const text = room === null ? "" : room > -1e-5 * (1 + Math.abs(room)) ? ` (room ${digits(Math.max(room, 0))})` : ` (short by ${digits(-room)} in this drawing)`;
      return element("li", {}, rule.name + text);
    });
    if (answer.rules.length > 12) list.push(element("li", {}, `and ${answer.rules.length - 12} more`));
    say("active rules", list.length ? element("ul", {}, ...list) : "none: nothing is required here");
    if (answer.clipped !== undefined && !answer.free) say("clipped units", `${Math.round(100 * answer.clipped)}%`);
    place.replaceChildren(...rows);
    const chart = document.getElementById("chart"), along = this.data.inputs[this.first].name;
    const second = this.second < 0 ? "" : ` and ${this.data.inputs[this.second].name}`;
    chart.setAttribute("aria-label", `Slice along ${along}${second}. At the cursor: ${rows.map((r) => r.textContent).join(" ")}`);
  }
}

function start() {
  setUpPage();
  const source = document.getElementById("explorer-data");
  if (!source) return;
  const explorer = new Explorer(JSON.parse(source.textContent));
  window.smleReport = { predict: (x) => explorer.run(x), explorer };
}

start();
