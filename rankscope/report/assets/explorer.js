// The page's wiring: settings → map and count; a chosen head → its charts; the table follows both.

const element = (id) => document.getElementById(id);
const runs = readRuns(element("data").textContent);
const specs = JSON.parse(element("charts").textContent);
const state = { run: runs[0], quantity: null, k: 1, place: 0, measure: "output", views: null, written: null };
const table = new HeadTable(element("heads"), (place) => chooseHead(place));

/** A run that was chosen: its title, quantities and table. */
function setRun(run) {
  state.run = run;
  state.quantities = quantitiesOf(run);
  state.quantity = state.quantities.find((one) => one.key === state.quantity?.key) ?? state.quantities[0];
  state.place = Math.min(state.place, run.places - 1);
  const fact = Object.fromEntries(run.facts);
  element("title").textContent = `${run.model} on ${run.corpus}`;
  element("subtitle").textContent =
    `${fact.windows} · weights ${fact.weights} · ${fact["computed by"].split(",")[0]}`;
  fill(element("quantity"), state.quantities.map((one) => [one.key, one.label]), state.quantity.key);
  for (const id of ["k", "k-number"]) element(id).max = run.n;
  // a quarter of n, where Linformer's Figure 1 reads its map
  state.k = Math.max(1, Math.floor(run.nTokens / 4));
  const measures = [...new Set(run.errors.map((one) => one.measure))];
  if (!measures.includes(state.measure)) state.measure = measures[0] ?? "output";
  fill(element("measure"), measures.map((one) => [one, one === "frobenius" ? "matrix" : one]), state.measure);
  element("measure-label").hidden = measures.length === 0;
  definitions(element("facts"), run.facts);
  definitions(element("meanings"), [
    ...state.quantities.filter((one) => one.meaning).map((one) => [one.label, one.meaning]),
    ...(run.errors.length ? [
      ["output error", "‖P̃V − PV‖_F / ‖PV‖_F, of the output with P̃ in place of P."],
      ["matrix error", "‖P̃ − P‖_F / ‖P‖_F, the relative Frobenius error."],
      ["P_low", "The best matrix of rank k, σ₁u₁v₁ᵀ + … + σ_k u_k v_kᵀ (Linformer's equation 6). Other methods are " +
        "shown on the map at their largest computed budget up to k; nothing is interpolated."],
    ] : []),
    ...(run.controls.length ? [["controls", controlsMeaning(run)]] : []),
  ]);
  showGaps(run);
  table.build(run, state.quantities);
}

function controlsMeaning(run) {
  const others = run.controls.filter((one) => !one.sameHeads).map((one) => one.name);
  return `What chance alone gives, on the same text: ${run.controls.map((one) => one.name).join(", ")}.` +
    (others.length ? ` The heads of ${others.join(", ")} are not those of the model: a curve is that of the head with ` +
      "the same number, and only means over all heads are subtracted." : "");
}

/** What was measured beside each control, and the difference with its interval: means over all heads. */
function showGaps(run) {
  const known = run.controls.filter((one) => !one.gap.why);
  element("gaps").hidden = run.controls.length === 0;
  const places = [...new Set(known.map((one) => one.gap.place))].join(", ");
  element("gaps-note").textContent = known.length
    ? `Mean over all heads of the cumulative ratio of σ at k = ${places}, whatever the slider says; paired by window.`
    : "";
  element("gaps-rows").replaceChildren(...run.controls.map((one) => gapRow(one.name, one.gap)));
}

function gapRow(name, gap) {
  const line = document.createElement("tr");
  const add = (text, kind, span) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    cell.className = kind;
    if (span) cell.colSpan = span;
    line.append(cell);
  };
  add(name, "text name");
  if (gap.why) {
    add(`No difference: ${gap.why}.`, "text", 4);
    return line;
  }
  for (const value of [gap.measured, gap.control]) add(shown("ratio", value ?? NaN), "");
  add(signed(gap.mean), "");
  const over = gap.units ? `, ${gap.units}` : "";
  add(gap.low === null ? `none${over}` : `${signed(gap.low)} to ${signed(gap.high)}${over}`, "text");
  return line;
}

/** A difference with its sign. */
function signed(value) {
  if (!Number.isFinite(value)) return "no value";
  return value.toFixed(4).replace(/^(?=\d)/, "+").replace("-", "−");
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value, false, value === chosen)));
}

function definitions(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([term, text]) => {
    const [name, meaning] = [document.createElement("dt"), document.createElement("dd")];
    name.textContent = term;
    meaning.textContent = text;
    return [name, meaning];
  }));
}

/** Map, count and table for the present quantity, k and tolerance; what the map is fed with. */
function showSettings() {
  const { run, quantity, k } = state;
  const tolerance = (run.tolerances[quantity.key] ??= quantity.tolerance);
  element("k").value = k;
  element("k").setAttribute("aria-valuetext", `k = ${k}`);
  for (const [id, value] of [["k-number", k], ["tolerance", tolerance]]) {
    // the field that is being written in is left alone, unless it is of something else now
    if (state.written !== quantity || document.activeElement !== element(id)) element(id).value = value;
  }
  state.written = quantity;
  element("tolerance-label").textContent = quantity.better === "high" ? "at least" : "at most";
  const rows = mapRows(run, quantity, k, tolerance);
  const [low, high] = colourRange(rows, quantity, element("stretch").checked);
  const label = named(quantity, k);
  element("map-title").textContent = `Layer × head: ${label}`;
  element("map-note").textContent = mapNote(quantity, k);
  const lost = rows.filter((row) => row.value === null).length;
  const met = rows.filter((row) => row.meets).length;
  const sign = quantity.better === "high" ? "≥" : "≤";
  element("count").textContent = `${met} of ${rows.length} heads have ${label} ${sign} ${tolerance}` +
    (lost ? ` (${lost} without a value)` : "");
  table.update(k);
  return { map: { data: { cells: rows }, signals: { low, high } } };
}

function named(quantity, k) {
  return quantity.usesK ? quantity.label.replace(/ at k$/, ` at k = ${k}`) : quantity.label;
}

function mapNote(quantity, k) {
  const series = quantity.series;
  if (!series) return quantity.meaning;
  if (series.ks === null) return `Over ${series.source}.`;
  if (series.ks.length === 0) return `A method without a budget; over ${series.source}.`;
  const position = budgetAt(series.ks, k);
  const budgets = `computed at ${series.ks.join(", ")}, over ${series.source}`;
  return position < 0 ? `No budget up to k = ${k}: ${budgets}.`
    : `At budget ${series.ks[position]}, the largest up to k = ${k}; ${budgets}.`;
}

/** The chosen head: title, numbers and picture; what its charts are fed with. */
function showHead() {
  const { run, place } = state;
  const { layer, head } = headOf(run, place);
  element("head-title").textContent = `Layer ${layer}, head ${head}`;
  element("head-note").textContent = `Matrices: ${noteOf(run, place)}.`;
  table.mark(place);
  const name = run.spectrum.isSigma ? "Singular values σ_k" : "Shares σ_k / Σσ";
  const sigma = spectrumRows(run, place);
  const floored = sigma.some((row) => row.value <= SIGMA_FLOOR) ? ` (floor ${SIGMA_FLOOR})` : "";
  element("spectrum-title").textContent = `${name}, log scale${floored}`;
  const errors = errorRows(run, place, state.measure);
  errorNote(errors);
  showPicture(layer, head);
  const n = Math.max(run.n, 2);
  const ends = ([low, high]) => ({ n, low, high });
  const some = (rows) => rows.length ? rows : [NO_ROW];
  return {
    map: { data: {}, signals: { chosenLayer: layer, chosenHead: head } },
    spectrum: { data: { rows: some(sigma) }, signals: ends(sigmaRange(sigma)) },
    ratios: { data: { rows: some(ratioRows(run, place)) }, signals: { n } },
    errors: { data: { rows: some(errors) }, signals: ends(errorRange(errors)) },
  };
}

/** What of the chosen head depends on k: its numbers, and the line in its charts. */
function showRank() {
  const { run, place, k } = state;
  const readings = state.quantities
    .filter((one) => !one.series || one.series.ks === null)
    .map((one) => [named(one, k), shown(one.kind, one.value(place, k))]);
  for (const one of run.controls) {
    const [value, own] = [at(one.cumulative, one.n, place, k), at(run.cumulative, run.n, place, k)];
    readings.push(one.sameHeads
      ? [`ratio σ of ${one.name} (difference)`, `${shown("ratio", value)} (${signed(own - value)})`]
      : [`ratio σ of ${one.name}, its own head`, shown("ratio", value)]);
  }
  element("readings").replaceChildren(...readings.map(([term, text]) => {
    const pair = document.createElement("div");
    definitions(pair, [[term, text]]);
    return pair;
  }));
  const line = { data: { at: [{ k }] }, signals: {} };
  return Object.fromEntries(CURVE_CHARTS.map((name) => [name, line]));
}

/** What charts are fed with by several, as one. */
function together(...parts) {
  const all = {};
  for (const part of parts) {
    for (const [name, { data, signals }] of Object.entries(part)) {
      all[name] = { data: { ...all[name]?.data, ...data }, signals: { ...all[name]?.signals, ...signals } };
    }
  }
  return all;
}

/** Rows and parameters into charts. */
async function feed(contents) {
  await Promise.all(Object.entries(contents).map(([name, { data, signals }]) => {
    const view = state.views[name];
    for (const [key, rows] of Object.entries(data)) view.data(key, rows);
    for (const [key, value] of Object.entries(signals)) view.signal(key, value);
    return view.runAsync();
  }));
}

function errorNote(rows) {
  const { run, measure } = state;
  const sources = new Set(run.errors.filter((one) => one.measure === measure).map((one) => one.source));
  const floored = rows.some((row) => row.value <= ERROR_FLOOR) ? ` Errors below ${ERROR_FLOOR} are drawn there.` : "";
  // out of sight but not gone, since a chart that has no width cannot be drawn
  element("errors").classList.toggle("away", rows.length === 0);
  element("errors-note").textContent = !run.errors.length
    ? "No errors were given: add a run of rankscope truncate or rankscope compare."
    : rows.length ? `Log scales; over ${[...sources].join(" and ")}.${floored}` : "No error of this head is known.";
}

function showPicture(layer, head) {
  const pictures = state.run.pictures;
  const found = pictures?.heads[`${layer},${head}`];
  element("picture-box").hidden = !found;
  element("picture-title").textContent = found ? `P of layer ${layer}, head ${head}, one window` : "P of one window";
  if (!found) {
    element("picture-note").textContent = pictures ? "No picture of this head." : "No pictures of P were made.";
    element("picture").removeAttribute("src");
    return;
  }
  element("picture").src = `data:image/png;base64,${found.png}`;
  element("picture").alt = `Attention weights of layer ${layer}, head ${head}: queries downwards, keys to the right`;
  const largest = found.largest === null ? "no finite weight" : `largest weight ${found.largest.toPrecision(3)}`;
  element("picture-note").textContent = `Queries downwards; ${largest}; ${pictures.caption}.`;
}

function chooseHead(place) {
  state.place = place;
  return feed(together(showHead(), showRank()));
}

function setRank(value) {
  // a field that is empty for a moment changes nothing
  if (!Number.isFinite(value)) return;
  state.k = Math.min(Math.max(1, Math.round(value)), state.run.n);
  soon();
}

// many events of a moving slider give one update a frame
let waiting = false;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(async () => {
    waiting = false;
    await feed(together(showSettings(), showRank()));
  });
}

function moveHead(event) {
  const { run, place } = state;
  const columns = run.heads.length;
  const [row, column] = [Math.floor(place / columns), place % columns];
  // layer 0 is at the bottom, so up is the next layer
  const target = {
    ArrowUp: [row + 1, column], ArrowDown: [row - 1, column],
    ArrowRight: [row, column + 1], ArrowLeft: [row, column - 1],
    Home: [row, 0], End: [row, columns - 1],
  }[event.key];
  if (!target) return;
  event.preventDefault();
  if (target[0] >= 0 && target[0] < run.layers.length && target[1] >= 0 && target[1] < columns) {
    chooseHead(target[0] * columns + target[1]);
  }
}

async function draw() {
  const root = document.documentElement;
  element("theme").textContent = root.dataset.theme === "dark" ? "Light colours" : "Dark colours";
  if (state.views) Object.values(state.views).forEach((view) => view.finalize());
  const contents = together(showSettings(), showHead(), showRank());
  state.views = await makeCharts(specs, contents, state.run, root.dataset.theme === "dark");
  state.views.map.addEventListener("click", (event, item) => {
    if (item?.datum && Number.isInteger(item.datum.place)) chooseHead(item.datum.place);
  });
}

async function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  await draw();
}

function listen() {
  element("settings").addEventListener("submit", (event) => event.preventDefault());
  element("quantity").addEventListener("change", (event) => {
    state.quantity = state.quantities.find((one) => one.key === event.target.value);
    soon();
  });
  for (const id of ["k", "k-number"]) {
    element(id).addEventListener("input", (event) => setRank(event.target.valueAsNumber));
  }
  element("tolerance").addEventListener("input", (event) => {
    if (!Number.isFinite(event.target.valueAsNumber)) return;
    state.run.tolerances[state.quantity.key] = event.target.valueAsNumber;
    soon();
  });
  element("stretch").addEventListener("change", soon);
  element("measure").addEventListener("change", (event) => {
    state.measure = event.target.value;
    feed(showHead());
  });
  element("map-box").addEventListener("keydown", moveHead);
  element("copy").addEventListener("click", async () => {
    const done = await copyText(table.tsv());
    element("copied").textContent = done ? `Copied ${table.rows.length} heads.` : "The browser refused to copy.";
  });
  element("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
  fill(element("pair"), runs.map((run, number) => [String(number), `${run.model} on ${run.corpus}`]), "0");
  element("pair-label").hidden = runs.length < 2;
  element("pair").addEventListener("change", async (event) => {
    setRun(runs[Number(event.target.value)]);
    await draw();
  });
}

const darkWanted = matchMedia("(prefers-color-scheme: dark)");
darkWanted.addEventListener("change", () => setTheme(darkWanted.matches ? "dark" : "light"));
document.documentElement.dataset.theme = darkWanted.matches ? "dark" : "light";
listen();
setRun(runs[0]);
// for whoever looks at the page from the browser's console, and for tests
window.rankscope = { state, table, ready: draw() };
