// The four Vega-Lite charts: made anew for each theme, then only fed with rows and parameters.

const SIGMA_FLOOR = 1e-8;
const ERROR_FLOOR = 1e-3;
// in place of no row at all: a legend without an entry has no size, and so the chart has none
const NO_ROW = { series: "no data", label: "no data", source: "no data", k: 1, value: null, shown: "no value" };
const CURVE_CHARTS = ["spectrum", "ratios", "errors"];

/** Colours of the style sheet for what Vega draws. */
function chartColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: colour("ink"), soft: colour("soft"), line: colour("line"), missing: colour("missing"),
    series: [1, 2, 3, 4, 5, 6].map((number) => colour(`series-${number}`)),
  };
}

function chartConfig(colours) {
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null,
    font,
    axis: {
      labelColor: colours.ink, titleColor: colours.ink, domainColor: colours.soft, tickColor: colours.soft,
      gridColor: colours.line, gridOpacity: 0.6, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400,
    },
    // legends below each other: side by side they may not fit
    legend: { labelColor: colours.ink, labelFontSize: 12, layout: { bottom: { anchor: "start", direction: "vertical", margin: 2 } } },
    range: { category: colours.series },
    view: { stroke: null },
  };
}

/**
 * All charts for the present theme, by name, as views. `contents` gives each its first data and
 * parameters: a chart that is drawn without any has no size.
 */
async function makeCharts(specs, contents, run, dark) {
  const colours = chartColours();
  const views = {};
  for (const name of Object.keys(specs)) {
    const spec = structuredClone(specs[name]);
    if (name === "map") spec.height = run.layers.length * Math.min(48, Math.max(19, 320 / run.layers.length));
    spec.datasets = contents[name].data;
    const values = { ink: colours.ink, missing: colours.missing, ...contents[name].signals };
    for (const one of spec.params) one.value = values[one.name] ?? one.value;
    const made = await vegaEmbed(`#${name}`, spec, {
      actions: false, renderer: "svg", config: chartConfig(colours),
      tooltip: { theme: dark ? "dark" : "light" },
    });
    views[name] = made.view;
  }
  return views;
}

/** Cells of the map. */
function mapRows(run, quantity, k, tolerance) {
  const rows = [];
  for (let place = 0; place < run.places; place++) {
    const value = quantity.value(place, k);
    rows.push({
      ...headOf(run, place), place,
      value: Number.isFinite(value) ? value : null,
      shown: shown(quantity.kind, value),
      note: noteOf(run, place),
      meets: meets(quantity, value, tolerance),
    });
  }
  return rows;
}

/** Ends of the colour scale: of the heads themselves, or the same at every k. */
function colourRange(rows, quantity, stretch) {
  const values = rows.map((row) => row.value).filter((value) => value !== null);
  const least = values.length ? Math.min(...values) : 0;
  const most = values.length ? Math.max(...values) : 1;
  if (stretch) return least < most ? [least, most] : [least - 0.5, least + 0.5];
  // up to 1 at least for ratios and errors, of which a poor method's may be larger
  return [0, quantity.top ? Math.max(quantity.top, most) : most > 0 ? most : 1];
}

function curve(rows, series, kind, ks, value, extra) {
  ks.forEach((k, position) => {
    const found = value(k, position);
    // what is not there leaves a gap, and is never drawn as 0
    if (!Number.isFinite(found)) return;
    const label = extra?.source ? `${series}, ${extra.source}` : series;
    rows.push({ series, label, k, value: found, shown: shown(kind, found), ...extra });
  });
}

/** A run's own curves, then those of its controls, each with a name. */
function sourcesOf(run) {
  return [["measured", run], ...run.controls.map((one) => [one.name, one])];
}

/** Spectrum of a head and of its controls; σ, or shares where only means of ratios are known. */
function spectrumRows(run, place) {
  const rows = [];
  for (const [source, one] of sourcesOf(run)) {
    const { ks, values, isSigma } = one.spectrum;
    if (isSigma !== run.spectrum.isSigma) continue;
    curve(rows, source, "error", ks, (k, position) => {
      const value = values[place * ks.length + position];
      return Number.isFinite(value) ? Math.max(value, SIGMA_FLOOR) : NaN;
    });
  }
  return rows;
}

/** Both ratios of a head and of its controls. */
function ratioRows(run, place) {
  const rows = [];
  for (const [source, one] of sourcesOf(run)) {
    for (const [series, values] of [["σ", one.cumulative], ["σ²", one.energy]]) {
      curve(rows, series, "ratio", one.spectrum.ks, (k) => at(values, one.n, place, k), { source });
    }
  }
  return rows;
}

/** Errors of a head by one measure; a method without a budget is a level line. */
function errorRows(run, place, measure) {
  const rows = [];
  for (const one of run.errors.filter((series) => series.measure === measure)) {
    const every = one.ks === null;
    let ks = one.ks;
    if (every) ks = run.drawn.filter((k) => k <= one.length);
    else if (ks.length === 0) ks = [1, run.nTokens];
    curve(rows, one.name, "error", ks, (k) => Math.max(errorAt(one, place, k), ERROR_FLOOR),
      { point: !every && one.ks.length > 0 });
  }
  return rows;
}

/** Ends of the spectrum's axis: a whole power of ten, and above the largest. */
function sigmaRange(rows) {
  const values = rows.map((row) => row.value);
  if (!values.length) return [ERROR_FLOOR, 1];
  return [10 ** Math.floor(Math.log10(Math.min(...values)) + 1e-9), 1.3 * Math.max(...values)];
}

/** Ends of the error axis: whole powers of ten from the floor to above the largest. */
function errorRange(rows) {
  const values = rows.map((row) => row.value);
  if (!values.length) return [ERROR_FLOOR, 1];
  return [
    Math.max(ERROR_FLOOR, 10 ** Math.floor(Math.log10(Math.min(...values)) + 1e-9)),
    Math.max(1, 1.3 * Math.max(...values)),
  ];
}
