// What the page shows: runs with their curves at every k, and the quantities of a head.
// A head is a place, layer position times heads plus head position; k counts from 1.

// a value within this of a tolerance meets it: single precision rounds 0.9 to 0.89999998
const SLACK = 1e-6;

/** Numbers of base64 of little-endian float32. */
function decode(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Runs with their numbers decoded. */
function readRuns(text) {
  const curves = (one) => {
    one.cumulative = decode(one.cumulative);
    one.energy = decode(one.energy);
    one.spectrum.values = decode(one.spectrum.values);
  };
  return JSON.parse(text).map((run) => {
    curves(run);
    run.controls.forEach(curves);
    run.errors.forEach((one) => { one.values = decode(one.values); });
    for (const name of Object.keys(run.scalars)) run.scalars[name] = decode(run.scalars[name]);
    run.places = run.layers.length * run.heads.length;
    // what was asked of one run says nothing about another, whose n may differ
    run.tolerances = {};
    return run;
  });
}

/** A value of curves that lie one after the other; NaN beyond their end. */
function at(values, length, place, k) {
  return k >= 1 && k <= length ? values[place * length + k - 1] : NaN;
}

/** Position in ks of the largest budget up to k; -1 where all are larger. */
function budgetAt(ks, k) {
  let found = -1;
  ks.forEach((budget, position) => { if (budget <= k) found = position; });
  return found;
}

/** Error of a method at k: at every k, at its largest budget up to k, or at its only one. */
function errorAt(series, place, k) {
  if (series.ks === null) return at(series.values, series.length, place, k);
  if (series.ks.length === 0) return series.values[place];
  return at(series.values, series.length, place, budgetAt(series.ks, k) + 1);
}

/** What can be mapped: how it is named, what it means, its value, and when a tolerance is met. */
function quantitiesOf(run) {
  const n = run.nTokens;
  const ratio = { kind: "ratio", usesK: true, better: "high", tolerance: 0.9, top: 1 };
  const rank = { kind: "rank", usesK: false, better: "low", tolerance: Math.max(1, Math.floor(n / 4)) };
  const found = [
    {
      ...ratio, key: "cumulative", label: "cumulative ratio of σ at k", short: "ratio σ",
      meaning: "The first k singular values over all, (σ₁ + … + σ_k) / (σ₁ + … + σ_n): the literature's normalised " +
        "cumulative singular value, which Linformer's Figure 1 shows.",
      value: (place, k) => at(run.cumulative, run.n, place, k),
    },
    {
      ...ratio, key: "energy", label: "energy ratio of σ² at k", short: "ratio σ²",
      meaning: "The same of their squares, (σ₁² + … + σ_k²) / (σ₁² + … + σ_n²); for one matrix, one minus it is the " +
        "squared relative Frobenius error of P_low.",
      value: (place, k) => at(run.energy, run.n, place, k),
    },
  ];
  const scalars = [
    ["k90", rank, "k for 90 %", "Smallest k whose cumulative ratio of σ reaches 0.9, as a mean over windows."],
    ["mean_effective_rank", rank, "effective rank",
      "The exponential of the entropy of σ/Σσ: n for equal singular values, 1 for a single one."],
    ["mean_stable_rank", rank, "stable rank", "‖P‖_F² / σ₁² = (σ₁² + … + σ_n²) / σ₁², at most the rank."],
    ["mean_row_entropy", { ...rank, kind: "entropy", tolerance: Number((Math.log(n) / 2).toFixed(2)) },
      "row entropy", "The entropy −Σ p ln p of a row of P in nats, as a mean over rows; from 0 to ln n."],
  ];
  for (const [key, base, label, meaning] of scalars) {
    if (run.scalars[key]) {
      found.push({ ...base, key, label, short: label, meaning, value: (place) => run.scalars[key][place] });
    }
  }
  const what = { output: "output", frobenius: "matrix" };
  // the bound is no method: it is drawn beside them
  run.errors.filter((series) => !series.isBound).forEach((series) => {
    const where = series.ks !== null && series.ks.length === 0 ? "" : " at k";
    found.push({
      kind: "error", usesK: series.ks === null || series.ks.length > 0, better: "low", tolerance: 0.1, top: 1,
      key: `error:${series.measure}:${series.name}`,
      label: `${what[series.measure]} error of ${series.name}${where}`,
      short: `${what[series.measure]}, ${series.name}`,
      value: (place, k) => errorAt(series, place, k),
      series,
    });
  });
  return found;
}

/** Whether a value meets a tolerance. */
function meets(quantity, value, tolerance) {
  if (!Number.isFinite(value) || !Number.isFinite(tolerance)) return false;
  const slack = SLACK * Math.max(1, Math.abs(tolerance));
  return quantity.better === "high" ? value >= tolerance - slack : value <= tolerance + slack;
}

/** A number for people. */
function shown(kind, value) {
  if (value === Infinity) return "∞";
  if (!Number.isFinite(value)) return "no value";
  if (kind === "ratio") return value.toFixed(4);
  if (kind === "rank") return value.toFixed(1);
  if (kind === "entropy") return value.toFixed(3);
  return Math.abs(value) >= 1e-3 || value === 0 ? value.toFixed(4) : value.toExponential(2);
}

/** How many of the windows a head's mean is over, and why not all. */
function noteOf(run, place) {
  if (run.matrices[place] === 0) return "not in the run";
  const note = `${run.usable[place]} of ${run.matrices[place]} usable`;
  return run.notes[place] ? `${note}: ${run.notes[place]}` : note;
}

/** Layer and head of a place. */
function headOf(run, place) {
  const heads = run.heads.length;
  return { layer: run.layers[Math.floor(place / heads)], head: run.heads[place % heads] };
}
