// The table of heads: sorted by a click on a column's name, copied as tab-separated values.

class HeadTable {
  /** choose(place) is called when a row's button is pressed. */
  constructor(table, choose) {
    this.head = table.tHead;
    this.body = table.tBodies[0];
    this.choose = choose;
    this.sort = { column: 0, descending: false };
  }

  /** A row for every head of the run, a column for every quantity. */
  build(run, quantities) {
    this.run = run;
    const places = Array.from({ length: run.places }, (_, place) => place);
    this.columns = [
      { label: "layer", value: (place) => headOf(run, place).layer, text: String },
      { label: "head", value: (place) => headOf(run, place).head, text: String },
      ...quantities.map((one) => ({
        label: one.short, title: one.label, usesK: one.usesK, value: one.value,
        text: (value) => shown(one.kind, value),
      })),
      { label: "matrices", value: (place) => noteOf(run, place), text: String, isText: true },
    ];
    if (this.sort.column >= this.columns.length) this.sort = { column: 0, descending: false };
    this.head.replaceChildren(this.#header());
    this.rows = places.map((place) => this.#row(place));
    this.order = [];
    this.body.replaceChildren(...this.rows.map((row) => row.line));
  }

  /** Numbers at k, in the order that was chosen. */
  update(k) {
    this.k = k;
    for (const row of this.rows) {
      this.columns.forEach((column, number) => {
        if (number > 1) row.cells[number].textContent = this.#text(column, row.place);
      });
    }
    this.#arrange();
  }

  /** Mark the chosen head. */
  mark(place) {
    for (const row of this.rows) row.line.setAttribute("aria-current", String(row.place === place));
  }

  /** What is shown, in its order, as tab-separated values. */
  tsv() {
    const clean = (text) => text.replace(/[\t\r\n]+/g, " ");
    const heading = this.columns.map((column) => {
      const label = (column.title ?? column.label).replace(/ at k$/, "");
      return clean(column.usesK ? `${label} at k = ${this.k}` : label);
    });
    const lines = this.order.map((place) => this.columns.map((column) => {
      const value = column.value(place, this.k);
      if (typeof value === "string") return clean(value);
      return Number.isFinite(value) ? String(Number(value.toPrecision(7))) : String(value);
    }));
    return [heading, ...lines].map((line) => line.join("\t")).join("\n") + "\n";
  }

  #header() {
    const line = document.createElement("tr");
    this.columns.forEach((column, number) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      if (column.isText) cell.className = "text";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = column.usesK ? `${column.label} at k` : column.label;
      if (column.title) button.title = column.title;
      button.addEventListener("click", () => this.#sortBy(number));
      cell.append(button);
      line.append(cell);
    });
    return line;
  }

  #row(place) {
    const line = document.createElement("tr");
    const { layer, head } = headOf(this.run, place);
    const cells = this.columns.map((column) => {
      const cell = document.createElement("td");
      if (column.isText) cell.className = "text";
      line.append(cell);
      return cell;
    });
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = String(layer);
    button.setAttribute("aria-label", `show layer ${layer}, head ${head}`);
    button.addEventListener("click", () => this.choose(place));
    cells[0].append(button);
    cells[1].textContent = String(head);
    return { place, line, cells };
  }

  #text(column, place) {
    return column.text(column.value(place, this.k));
  }

  #sortBy(number) {
    const descending = this.sort.column === number && !this.sort.descending;
    this.sort = { column: number, descending };
    this.#arrange();
  }

  #arrange() {
    const { column, descending } = this.sort;
    const values = this.rows.map((row) => this.columns[column].value(row.place, this.k));
    const sign = descending ? -1 : 1;
    const order = this.rows.map((row) => row.place).sort((one, other) => {
      const [a, b] = [values[one], values[other]];
      if (typeof a === "string") return sign * a.localeCompare(b) || one - other;
      // what is missing comes last, whichever way
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || one - other;
      return a === b ? one - other : sign * (a < b ? -1 : 1);
    });
    [...this.head.rows[0].cells].forEach((cell, number) => {
      cell.setAttribute("aria-sort", number !== column ? "none" : descending ? "descending" : "ascending");
    });
    // moving rows would take the focus from a button among them
    if (order.some((place, position) => place !== this.order[position])) {
      this.order = order;
      this.body.append(...order.map((place) => this.rows[place].line));
    }
  }
}

/** Copy text to the clipboard; the older way where a page may not use the newer. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
